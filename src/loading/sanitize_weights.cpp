#include "loading/sanitize_weights.h"

#include "core/error.h"
#include "core/log.h"
#include "loading/detect.h"
#include "loading/expert_stacks.h"
#include "ops/matrix_source.h"

#include <cstring>
#include <optional>
#include <utility>

namespace mlxcel {

namespace {

constexpr const char* kParts[] = {"weight", "scales", "biases"};
constexpr const char* kRefetch =
    "fetch the checkpoint again, or convert it again from its original";

bool same_tensor(const WeightTensor* a, const WeightTensor* b) {
  if (a == nullptr || b == nullptr) {
    return a == b;
  }
  return a->dtype == b->dtype && a->shape == b->shape &&
         (a->data == b->data || std::memcmp(a->data, b->data, a->bytes) == 0);
}

bool same_stems(
    const std::string& a, const std::string& b, const WeightMap& weights) {
  for (const char* part : kParts) {
    if (!same_tensor(
            weights.find(cat(a, ".", part)), weights.find(cat(b, ".", part)))) {
      return false;
    }
  }
  return true;
}

void narrow_f64(WeightMap& weights, TensorData data) {
  for (const std::string& key : weights.keys()) {
    const WeightTensor& tensor = weights.at(key);
    if (tensor.dtype != DType::f64) {
      continue;
    }
    WeightTensor narrow = tensor;
    if (data == TensorData::headers_only) {
      narrow.dtype = DType::f32;
      narrow.bytes /= 2;
    } else {
      std::byte* values = nullptr;
      narrow = make_weight(DType::f32, tensor.shape, &values);
      read_as_f32(tensor, reinterpret_cast<float*>(values));
    }
    weights.set(key, std::move(narrow));
  }
}

// [rows, cols] -> [cols, rows]
WeightTensor turned(const WeightTensor& tensor, TensorData data) {
  WeightTensor out = tensor;
  out.shape = {tensor.shape[1], tensor.shape[0]};
  if (data == TensorData::headers_only) {
    return out;
  }
  std::byte* to = nullptr;
  out = make_weight(tensor.dtype, out.shape, &to);
  size_t size = size_of(tensor.dtype);
  auto rows = size_t(tensor.shape[0]);
  auto cols = size_t(tensor.shape[1]);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) {
      std::memcpy(
          to + (c * rows + r) * size,
          tensor.data + (r * cols + c) * size,
          size);
    }
  }
  return out;
}

void turn_input_first(
    const Config& config,
    const NameMap& names,
    WeightMap& weights,
    TensorData data) {
  if (config.layout() == WeightsLayout::mlx) {
    return;
  }
  for (const std::string& key : weights.keys()) {
    auto [stem, part] = split_key(key);
    if (part != "weight" || !names.is_input_first(stem)) {
      continue;
    }
    int64_t rows = 0;
    int64_t cols = 0;
    for (const RolePart& role : names.parts_of(stem)) {
      rows += role.count;
      cols = names.cols(role.role);
    }
    const WeightTensor& tensor = weights.at(key);
    if (is_float(tensor.dtype) && tensor.shape == Shape{cols, rows}) {
      weights.set(key, turned(tensor, data));
    }
  }
}

void restore_tied_head(
    const NameMap& names, WeightMap& weights, TensorData data) {
  if (names.spec().head != HeadKind::tied) {
    return;
  }
  std::optional<StemRows> embedding = names.locate("embedding", weights);
  if (!embedding) {
    return;  // the builder says what is missing
  }
  if (std::optional<StemRows> head = names.locate("head", weights)) {
    if (data == TensorData::readable && head->stem != embedding->stem &&
        !same_stems(head->stem, embedding->stem, weights)) {
      log_warning(
          cat("tie_word_embeddings is true, but \"",
              head->stem,
              ".weight\" is stored and differs from \"",
              embedding->stem,
              ".weight\"; using the stored head"));
    }
    return;
  }
  std::vector<StemRows> stems = names.stems_of("head");
  if (stems.empty() || stems.front().stem == embedding->stem) {
    return;
  }
  for (const char* part : kParts) {
    if (const WeightTensor* found =
            weights.find(cat(embedding->stem, ".", part))) {
      WeightTensor shared = *found;
      weights.set(cat(stems.front().stem, ".", part), std::move(shared));
    }
  }
}

void check_fp8_scales(const WeightMap& weights) {
  for (const auto& [key, tensor] : weights) {
    bool fp8 = tensor.dtype == DType::f8_e4m3 || tensor.dtype == DType::f8_e5m2;
    std::string_view part = split_key(key).second;
    if (fp8 && part == "weight" && !weights.contains(key + "_scale_inv") &&
        !weights.contains(key + "_scale")) {
      throw CheckpointError(
          cat("tensor \"", key, "\" in ", tensor.file, " has no scales"),
          cat("its ",
              tensor.dtype,
              " ",
              to_string(tensor.shape),
              " cannot be read without \"",
              key,
              "_scale_inv\""),
          kRefetch);
    }
  }
}

void check_packed_parts(const WeightMap& weights, const QuantConfig& quant) {
  for (const auto& [key, tensor] : weights) {
    auto [stem, part] = split_key(key);
    bool alone = !weights.contains(cat(stem, ".weight"));
    if ((part == "scales" || part == "biases") && alone) {
      throw CheckpointError(
          cat("tensor \"", key, "\" in ", tensor.file, " has no weight"),
          cat("\"", stem, ".weight\" is not in the checkpoint"),
          kRefetch);
    }
    if (part == "scales" && quant.format_of(stem).has_biases &&
        !weights.contains(cat(stem, ".biases"))) {
      throw CheckpointError(
          cat("tensor \"",
              key,
              "\" in ",
              tensor.file,
              " has no \"",
              stem,
              ".biases\""),
          cat("weights packed as ",
              quant.format_of(stem).name,
              " need scales and biases"),
          kRefetch);
    }
    if (part == "weight" && tensor.dtype == DType::u32 &&
        !weights.contains(cat(stem, ".scales"))) {
      throw CheckpointError(
          cat("tensor \"",
              key,
              "\" in ",
              tensor.file,
              " has no \"",
              stem,
              ".scales\""),
          cat("its ",
              tensor.dtype,
              " ",
              to_string(tensor.shape),
              " cannot be read without them"),
          kRefetch);
    }
  }
}

}  // namespace

void sanitize_weights(
    const Config& config,
    const NameMap& names,
    WeightMap& weights,
    TensorData data) {
  drop_unused_tower(config, weights);
  narrow_f64(weights, data);
  turn_input_first(config, names, weights, data);
  spread_expert_stacks(names, weights, data);
  restore_tied_head(names, weights, data);
}

void check_formats(const WeightMap& weights, const Config& config) {
  check_fp8_scales(weights);
  check_packed_parts(weights, QuantConfig(config));
}

DType activation_dtype_of(const NameMap& names, const WeightMap& weights) {
  std::optional<StemRows> embedding = names.locate("embedding", weights);
  if (embedding) {
    for (const char* part : {"scales", "weight"}) {
      const WeightTensor* tensor =
          weights.find(cat(embedding->stem, ".", part));
      if (tensor != nullptr && is_float(tensor->dtype)) {
        return tensor->dtype == DType::f64 ? DType::f32 : tensor->dtype;
      }
    }
  }
  return DType::f32;
}

}  // namespace mlxcel
