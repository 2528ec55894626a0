// The compute stages that `linear`, `mlp` and `head` are made of. Each runs on
// every thread inside one fork-join, after Product::pack.
#pragma once

#include "ops/cpu/cpu_linear.h"

namespace mlxcel::cpu {

// y = residual + output_scale * output_norm(product), into a matrix of the
// product's rows.
class LinearStage {
 public:
  // residual may be null. `tasks` of this stage are handed out once. Rows of y
  // are `pitch` floats apart, 0: as many as there are outputs; then there is no
  // residual.
  LinearStage(
      Context& context,
      const Product& product,
      float* y,
      const float* residual,
      const LinearOptions& options,
      int64_t pitch = 0);
  void run(int thread);

 private:
  void finish(int row, int rows, int64_t begin, int64_t end) const;
  void run_prefill(int thread);
  void norm_rows(int thread) const;

  Context& context_;
  const Product& product_;
  float* y_;
  int64_t pitch_;
  const float* residual_;
  LinearOptions options_;
  std::vector<Product::Panel> panels_;
  int tile_groups_ = 1;
  std::atomic<int> next_task_{0};
  size_t thread_bytes_ = 0;
  std::unique_ptr<Scratch> scratch_;
};

// What an MLP does between its two products.
struct MlpForm {
  Activation activation = Activation::silu;
  bool gated = true;
  bool in_turn = false;
  SwigluClamp clamp;
  Xielu xielu;
  float gate_scale = 1;
};

// h = act(gate_scale * gate) * up, or act(up) when not gated, for the product
// of the stacked [gate, up] linear.
class GateUpStage {
 public:
  GateUpStage(
      Context& context,
      const Product& product,
      float* h,
      int64_t inner,
      const MlpForm& form);
  void run(int thread);

 private:
  struct Pair {
    Product::Panel gate, up;
  };
  void run_decode(int thread);
  void run_prefill(int thread);
  // Gate and up are products of their own.
  bool two_products() const {
    return form_.gated && !form_.in_turn;
  }
  // A row's columns [first, first + count) of the product, of the gate where
  // they are two; in turn, `up` is memory of `count` values.
  void finish(
      float* gate, float* up, float* h, int64_t first, int64_t count) const;
  // Of some columns of a row; changes gate and up.
  void activate(float* gate, float* up, float* h, int64_t count) const;

  Context& context_;
  const Product& product_;
  float* h_;
  int64_t inner_;
  MlpForm form_;
  std::vector<Pair> pairs_;
  int tile_groups_ = 1;
  std::atomic<int> next_task_{0};
  size_t thread_bytes_ = 0;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace mlxcel::cpu
