// The registry holds together: names are unique, every family has a fixture,
// the table in the docs is this one.
#include "models/registry.h"

#include "support/fixtures.h"
#include "support/models/generated_cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace mlxcel {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

TEST(Registry, NamesAreUnique) {
  for (const std::vector<std::string>& names :
       {known_model_types(), known_architectures()}) {
    std::set<std::string> unique(names.begin(), names.end());
    EXPECT_EQ(unique.size(), names.size());
  }
}

TEST(Registry, NamesLeadToTheirFamily) {
  for (const Family* family : families()) {
    for (const std::string& type : family->model_types) {
      EXPECT_EQ(find_by_model_type(type), family);
    }
    for (const std::string& architecture : family->architectures) {
      EXPECT_EQ(find_by_architecture(architecture), family);
    }
  }
  EXPECT_EQ(find_by_model_type("Llama"), nullptr);
  EXPECT_EQ(find_by_model_type(""), nullptr);
}

// model_type of every case of a set, where the root has the set.
void add_types(const std::filesystem::path& set, std::set<std::string>& types) {
  if (!std::filesystem::is_directory(set)) {
    return;
  }
  for (const auto& entry : std::filesystem::directory_iterator(set)) {
    std::filesystem::path config = entry.path() / "model" / "config.json";
    if (std::filesystem::exists(config)) {
      types.insert(
          nlohmann::json::parse(read_file(config)).value("model_type", ""));
    }
  }
}

// A case in the set that the tests run on, or, where that is the part that the
// repository carries, an entry among the families that it has no room for.
TEST(Registry, EveryFamilyHasAFixture) {
  std::filesystem::path carried = MLXCEL_TEST_FIXTURES;
  std::set<std::string> covered;
  add_types(testing::fixture_root() / "text", covered);
  add_types(testing::fixture_root() / "tasks", covered);
  add_types(carried / "text", covered);
  if (testing::fixture_root() == carried) {
    for (const auto& type : nlohmann::json::parse(
             read_file(carried / "text" / "not_carried.json"))) {
      covered.insert(type.get<std::string>());
    }
  }
  for (const std::string& name : testing::generated_cases()) {
    add_types(testing::generated_case(name).parent_path(), covered);
  }
  for (const Family* family : families()) {
    if (family->decoder != nullptr) {
      EXPECT_TRUE(std::any_of(
          family->model_types.begin(),
          family->model_types.end(),
          [&](const std::string& type) { return covered.contains(type); }))
          << family->name;
    }
  }
}

TEST(Registry, RefusingFamiliesSayWhy) {
  for (const Family* family : families()) {
    EXPECT_EQ(
        family->adapters == AdapterSupport::refused,
        !family->adapter_refusal.empty())
        << family->name;
  }
}

TEST(Registry, TheDocsHoldTheTable) {
  std::filesystem::path docs =
      std::filesystem::path(MLXCEL_TEST_FIXTURES) / ".." / ".." / "docs";
  EXPECT_THAT(
      read_file(docs / "families.md"),
      ::testing::HasSubstr(families_markdown()))
      << "write the output of `mlxcel arch --markdown` into docs/families.md";
}

}  // namespace
}  // namespace mlxcel
