// A case of the text or quantization fixtures: tokens in, logits and greedy
// continuation out.
#pragma once

#include "io/config.h"

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mlxcel::testing {

struct TextCase {
  std::string name;
  std::filesystem::path model;  // the checkpoint's folder
  nlohmann::json meta;
  std::string model_type;
  std::vector<int32_t> input_ids;
  std::vector<std::vector<float>> logits;  // [input_ids][vocab]
  std::vector<int32_t> greedy;
  std::vector<float> margins;  // best minus second logit of each greedy step
};

// A case's config.json as the loading pipeline hands it on: a text model's own
// config in place of what wraps it, and the layout that the weights name.
Config read_case_config(const std::filesystem::path& model);
// Where a case lies: among the fixtures, or generated (set "text").
std::filesystem::path case_folder(
    const std::string& set, const std::string& name);

TextCase load_text_case(const std::string& set, const std::string& name);

// Cases of a set whose family is registered and can be built.
std::vector<std::string> runnable_cases(const std::string& set);

// Largest absolute difference; infinity where the sizes differ or a value is
// not finite.
double max_difference(
    const std::vector<std::vector<float>>& actual,
    const std::vector<std::vector<float>>& expected);
double mean_difference(
    const std::vector<std::vector<float>>& actual,
    const std::vector<std::vector<float>>& expected);

}  // namespace mlxcel::testing
