// Random small llamas and adapters for them, written as a user would have them.
#pragma once

#include "io/weight_map.h"

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

namespace mlxcel::testing {

// A low-rank update as plain matrices: delta [rows, in] = factor * left right.
struct RandomPair {
  std::string stem;
  int64_t rows = 0, in = 0, rank = 0;
  std::vector<double> left, right;  // [rows, rank], [rank, in]
};

struct RandomAdapter {
  std::filesystem::path folder;
  double factor = 0;
  std::vector<RandomPair> pairs;
};

class RandomLlama {
 public:
  // A checkpoint in `folder`/model: sizes, layers, tied or not and the dtype
  // follow the seed.
  RandomLlama(const std::filesystem::path& folder, unsigned seed);

  std::filesystem::path model() const {
    return folder_ / "model";
  }
  int64_t vocab() const {
    return vocab_;
  }
  DType dtype() const {
    return dtype_;
  }

  // An adapter on some of the matrices, each pair with its own rank and
  // orientation, each half stored in a dtype of its own.
  RandomAdapter add_adapter();

  // The checkpoint with scale * factor * left right of each adapter added in
  // f64, as f32 weights, in `folder`/`name`.
  std::filesystem::path write_changed(
      const std::string& name,
      const std::vector<std::pair<const RandomAdapter*, double>>& adapters);

 private:
  struct Site {
    std::string stem;
    int64_t rows, in;
  };
  int64_t pick(int64_t low, int64_t high);
  double normal();
  WeightTensor random_tensor(
      DType dtype, Shape shape, double size, double mean);
  void write_config(const std::filesystem::path& folder, DType dtype) const;

  std::filesystem::path folder_;
  std::minstd_rand random_;
  int64_t hidden_, inner_, heads_, kv_heads_, head_dim_, layers_, vocab_;
  bool tied_;
  DType dtype_;
  std::vector<Site> sites_;
  WeightMap weights_;
  int adapters_ = 0;
};

}  // namespace mlxcel::testing
