#include "support/models/generated_cases.h"

#include "io/safetensors.h"
#include "support/temporary_folder.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace mlxcel::testing {

namespace fs = std::filesystem;

namespace {

constexpr const char* kData = MLXCEL_TEST_DATA "/text_families";

const nlohmann::json& described() {
  static const nlohmann::json cases = [] {
    std::ifstream stream(std::string(kData) + ".json");
    return nlohmann::json::parse(stream);
  }();
  return cases;
}

// As `Weights` of the script: values around a centre from an FNV-1a hash of the
// name and MurmurHash3's finalizer of the index.
WeightTensor generated(const std::string& name, const nlohmann::json& tensor) {
  auto shape = tensor.at("shape").get<Shape>();
  uint32_t seed = 2166136261u;
  for (char c : name) {
    seed = (seed ^ uint8_t(c)) * 16777619u;
  }
  double size = shape.size() > 1 ? 2 / std::sqrt(double(shape.back())) : 0.5;
  double around = tensor.at("around").get<double>();
  std::byte* data = nullptr;
  WeightTensor out = make_weight(DType::f32, shape, &data);
  for (uint32_t i = 0; i < uint32_t(element_count(shape)); ++i) {
    uint32_t h = seed + i * 2654435761u;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    h ^= h >> 16;
    auto value = float(around + (double(h >> 8) / (1 << 23) - 1) * size);
    std::memcpy(data + i * sizeof value, &value, sizeof value);
  }
  return out;
}

void write_json(const fs::path& path, const nlohmann::json& json) {
  std::ofstream(path) << json.dump(1) << "\n";
}

void write_case(const fs::path& folder, const std::string& name) {
  const nlohmann::json& entry = described().at(name);
  fs::create_directories(folder / "model");
  write_json(folder / "model" / "config.json", entry.at("config"));
  write_json(folder / "meta.json", {{"abs_tolerance", 5e-4}});
  WeightMap weights, expected;
  for (const auto& [key, tensor] : entry.at("tensors").items()) {
    weights.set(key, generated(key, tensor));
  }
  WeightMap all = read_safetensors(std::string(kData) + ".safetensors").tensors;
  for (const char* key : {"input_ids", "logits", "greedy", "margins"}) {
    expected.set(key, all.at(name + "." + key));
  }
  write_safetensors(folder / "model" / "model.safetensors", weights);
  write_safetensors(folder / "expected.safetensors", expected);
}

}  // namespace

std::vector<std::string> generated_cases() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : described().items()) {
    names.push_back(name);
  }
  return names;
}

fs::path generated_case(const std::string& name) {
  static const TemporaryFolder root;
  fs::path folder = root.path() / name;
  if (!fs::exists(folder)) {
    write_case(folder, name);
  }
  return folder;
}

}  // namespace mlxcel::testing
