// From checkpoint tensors to what a backend prepares: finds `<stem>.weight` and
// its `.scales` and `.biases`, works out the packed format and checks every
// shape, so that a model's builder only names stems and dimensions.
#pragma once

#include "io/config.h"
#include "io/weight_map.h"
#include "ops/weights.h"

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

// A packed format that the backends compute on: one row of a table.
struct PackedFormat {
  std::string name;  // `mode` in config.json
  QuantMode mode = QuantMode::none;
  std::vector<int> bits;
  std::vector<int> group_sizes;
  bool has_biases = true;
};

const std::vector<PackedFormat>& packed_formats();
std::string
supported_formats();  // "affine with 4 or 8 bits, groups of 32, ..."

// What config.json says under `quantization`, or `quantization_config` where
// that names no other tool's method. Throws ConfigError for formats that are
// not in the table.
class QuantConfig {
 public:
  QuantConfig() = default;
  explicit QuantConfig(const Config& config);

  bool stated() const {  // config.json has an entry
    return stated_;
  }
  // The entry for a stem: its own, else the default. Numbers absent from it
  // are 0. Tensor shapes overrule both.
  Quant of(std::string_view stem) const;
  // The table's row for the entry's mode; affine where config.json is silent.
  const PackedFormat& format_of(std::string_view stem) const;
  // config.json says `false` for this stem.
  bool excludes(std::string_view stem) const;

 private:
  bool stated_ = false;
  Quant default_{QuantMode::affine, 0, 0};
  std::map<std::string, std::optional<Quant>, std::less<>> layers_;
};

class MatrixSource {
 public:
  // Both must outlive the source.
  MatrixSource(const WeightMap& weights, const Config& config);

  const WeightMap& weights() const {
    return weights_;
  }
  bool has(std::string_view key) const {
    return weights_.contains(key);
  }

  // The matrix `<stem>.weight` with `out` rows (0: any number) of `in` weights.
  // Bits follow from the shapes, bits = packed columns * 32 / in, the group
  // size is in / scale columns; both beat config.json. Throws CheckpointError
  // that names the tensor and the shapes.
  MatrixWeight matrix(std::string_view stem, int64_t out, int64_t in);

  // The matrices [out, in] of a 3-D tensor `<stem>.weight`, `count` of them, as
  // one of count * out rows: a view. The same rules and errors as matrix().
  MatrixWeight stack(
      std::string_view stem, int64_t count, int64_t out, int64_t in);

  // A float tensor of exactly this shape: norm weights, biases, sinks.
  WeightTensor tensor(std::string_view key, const Shape& shape);
  std::optional<WeightTensor> find_tensor(
      std::string_view key, const Shape& shape);

  // Marks a tensor as used; matrix() and tensor() do so themselves.
  void claim(std::string_view key);
  // Tensors that nobody has used, sorted.
  std::vector<std::string> unclaimed() const;

 private:
  const WeightTensor& use(std::string_view key);
  MatrixWeight make_matrix(
      std::string_view stem,
      const WeightTensor& weight,
      const WeightTensor* scales,
      const WeightTensor* biases,
      int64_t out,
      int64_t in);

  const WeightMap& weights_;
  std::string config_file_;
  QuantConfig quant_;
  std::set<std::string, std::less<>> claimed_;
};

}  // namespace mlxcel
