#include "core/cpu_features.h"

#include "core/error.h"

#include <cstdlib>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel {
namespace {

using ::testing::HasSubstr;

// Sets MLXCEL_CPU_ISA for a test and puts the former value back.
class ForcedIsa {
 public:
  explicit ForcedIsa(const std::string& value) {
    if (const char* old = std::getenv("MLXCEL_CPU_ISA")) {
      old_ = old;
    }
    setenv("MLXCEL_CPU_ISA", value.c_str(), 1);
  }
  ~ForcedIsa() {
    if (old_) {
      setenv("MLXCEL_CPU_ISA", old_->c_str(), 1);
    } else {
      unsetenv("MLXCEL_CPU_ISA");
    }
  }

 private:
  std::optional<std::string> old_;
};

TEST(CpuFeaturesTest, SupportedSetsAscendFromPortable) {
  std::vector<Isa> isas = supported_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::portable);
  for (size_t i = 1; i < isas.size(); ++i) {
    EXPECT_LT(isas[i - 1], isas[i]);
  }
}

TEST(CpuFeaturesTest, EachSupportedSetCanBeForced) {
  for (Isa isa : supported_isas()) {
    ForcedIsa forced{std::string(name_of(isa))};
    EXPECT_EQ(choose_isa(), isa);
  }
}

TEST(CpuFeaturesTest, AnEmptySettingPicksTheBest) {
  ForcedIsa forced("");
  EXPECT_EQ(choose_isa(), supported_isas().back());
}

TEST(CpuFeaturesTest, AnUnknownSetIsAUsageErrorThatNamesTheChoices) {
  ForcedIsa forced("avx1024");
  try {
    choose_isa();
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("MLXCEL_CPU_ISA=avx1024 is not an instruction set"));
    EXPECT_THAT(error.fix(), HasSubstr("portable"));
  }
}

}  // namespace
}  // namespace mlxcel
