#include "loading/materialize.h"

#include "core/error.h"
#include "io/safetensors.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

namespace mlxcel {
namespace {

// Bytes of the mapping around a tensor that this process has in its page
// tables.
size_t resident_bytes(const WeightTensor& tensor) {
  auto address = reinterpret_cast<uintptr_t>(tensor.data);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin <= address && address < end;
    } else if (inside && std::sscanf(line.c_str(), "Rss: %lu kB", &kib) == 1) {
      return kib * 1024;
    }
  }
  return 0;
}

TEST(MaterializeTest, MapsEveryPage) {
  testing::TemporaryFolder folder;
  WeightMap weights;
  std::byte* data = nullptr;
  weights.set("a", make_weight(DType::u8, {24 << 20}, &data));
  std::memset(data, 1, 24 << 20);
  auto path = folder.path() / "a.safetensors";
  write_safetensors(path, weights);
  WeightTensor tensor = read_safetensors(path).tensors.at("a");
  EXPECT_LT(resident_bytes(tensor), tensor.bytes / 2);
  std::vector<double> progress;
  // Tensors may share pages: a tied head is listed twice.
  materialize(
      {tensor, tensor}, 2, [&](double done) { progress.push_back(done); });
  EXPECT_GE(resident_bytes(tensor), tensor.bytes);
  ASSERT_FALSE(progress.empty());
  EXPECT_EQ(progress.back(), 1);
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
}

TEST(MaterializeTest, OwnedAndEmptyTensorsNeedNothing) {
  std::byte* data = nullptr;
  WeightTensor empty = make_weight(DType::f32, {0}, &data);
  empty.file = "a.safetensors";
  bool called = false;
  materialize({make_weight(DType::f32, {4}, &data), empty}, 2, [&](double) {
    called = true;
  });
  EXPECT_FALSE(called);
}

TEST(MaterializeTest, TheSettingIsChecked) {
  const char* name = "MLXCEL_WEIGHT_MATERIALIZATION";
  ::unsetenv(name);
  EXPECT_FALSE(lazy_materialization());
  ::setenv(name, "lazy", 1);
  EXPECT_TRUE(lazy_materialization());
  ::setenv(name, "eager", 1);
  EXPECT_FALSE(lazy_materialization());
  ::setenv(name, "no", 1);
  EXPECT_THROW(lazy_materialization(), UsageError);
  ::unsetenv(name);
}

}  // namespace
}  // namespace mlxcel
