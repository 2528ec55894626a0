#include "support/models/text_case.h"

#include "io/safetensors.h"
#include "models/registry.h"
#include "support/fixtures.h"
#include "support/models/generated_cases.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

namespace mlxcel::testing {

namespace fs = std::filesystem;

namespace {

nlohmann::json read_json(const fs::path& path) {
  std::ifstream stream(path);
  return nlohmann::json::parse(stream);
}

template <typename T>
std::vector<T> values(const WeightMap& tensors, const std::string& key) {
  const WeightTensor& tensor = tensors.at(key);
  std::vector<T> out(tensor.bytes / sizeof(T));
  std::memcpy(out.data(), tensor.data, tensor.bytes);
  return out;
}

double difference(float actual, float expected) {
  if (actual == expected) {
    return 0;  // also where both are infinite
  }
  double distance = std::abs(double(actual) - double(expected));
  return std::isfinite(distance) ? distance
                                 : std::numeric_limits<double>::infinity();
}

template <typename Visit>
bool visit_pairs(
    const std::vector<std::vector<float>>& actual,
    const std::vector<std::vector<float>>& expected,
    Visit visit) {
  if (actual.size() != expected.size()) {
    return false;
  }
  for (size_t row = 0; row < actual.size(); ++row) {
    if (actual[row].size() != expected[row].size()) {
      return false;
    }
    for (size_t i = 0; i < actual[row].size(); ++i) {
      visit(difference(actual[row][i], expected[row][i]));
    }
  }
  return true;
}

}  // namespace

Config read_case_config(const fs::path& model) {
  nlohmann::json json = read_json(model / "config.json");
  if (json.contains("text_config")) {
    std::string type = json.at("model_type");
    json.update(nlohmann::json(json.at("text_config")));
    json["model_type"] = type;
  }
  Config config(std::move(json), "config.json");
  if (read_safetensors(model / "model.safetensors").metadata["format"] ==
      "mlx") {
    config.set_layout(WeightsLayout::mlx);
  }
  return config;
}

fs::path case_folder(const std::string& set, const std::string& name) {
  fs::path folder = fixture_folder(set, name);
  return set == "text" && !fs::exists(folder) ? generated_case(name) : folder;
}

TextCase load_text_case(const std::string& set, const std::string& name) {
  fs::path folder = case_folder(set, name);
  TextCase out;
  out.name = name;
  out.model = folder / "model";
  out.meta = read_json(folder / "meta.json");
  out.model_type =
      read_json(out.model / "config.json").at("model_type").get<std::string>();
  WeightMap tensors = read_safetensors(folder / "expected.safetensors").tensors;
  out.input_ids = values<int32_t>(tensors, "input_ids");
  out.greedy = values<int32_t>(tensors, "greedy");
  out.margins = values<float>(
      tensors, tensors.contains("margins") ? "margins" : "greedy_margin");
  std::vector<float> flat = values<float>(tensors, "logits");
  size_t vocab = flat.size() / out.input_ids.size();
  for (size_t row = 0; row < out.input_ids.size(); ++row) {
    auto begin = flat.begin() + int64_t(row * vocab);
    out.logits.emplace_back(begin, begin + int64_t(vocab));
  }
  return out;
}

std::vector<std::string> runnable_cases(const std::string& set) {
  std::vector<std::string> out;
  std::vector<std::string> names = fixture_cases(set, "model");
  if (set == "text") {
    std::vector<std::string> own = generated_cases();
    names.insert(names.end(), own.begin(), own.end());
  }
  for (const std::string& name : names) {
    nlohmann::json config =
        read_json(case_folder(set, name) / "model" / "config.json");
    const Family* family =
        find_by_model_type(config.value("model_type", std::string()));
    if (family != nullptr && family->decoder != nullptr) {
      out.push_back(name);
    }
  }
  return out;
}

double max_difference(
    const std::vector<std::vector<float>>& actual,
    const std::vector<std::vector<float>>& expected) {
  double largest = 0;
  bool same = visit_pairs(actual, expected, [&](double distance) {
    largest = std::max(largest, distance);
  });
  return same ? largest : std::numeric_limits<double>::infinity();
}

double mean_difference(
    const std::vector<std::vector<float>>& actual,
    const std::vector<std::vector<float>>& expected) {
  double sum = 0;
  size_t count = 0;
  bool same = visit_pairs(actual, expected, [&](double distance) {
    sum += distance;
    ++count;
  });
  return same && count > 0 ? sum / double(count)
                           : std::numeric_limits<double>::infinity();
}

}  // namespace mlxcel::testing
