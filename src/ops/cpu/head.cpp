#include "ops/cpu/linear_stage.h"
#include "ops/cpu/matmul.h"

#include <cmath>

namespace mlxcel::cpu {

// All rows use the decode arithmetic, prompt rows too: a sequence has one row
// of logits a step, for which converting panels would not pay, and the role of
// a row must not depend on how many there are.
Tensor head(
    Context& context, const Step& step, const Tensor& x, const HeadArgs& args) {
  const auto& linear = static_cast<const CpuLinear&>(*args.head);
  int rows = int(step.output_rows.size());
  Tensor y = context.make(rows, linear.out());
  if (rows == 0) {
    return y;
  }
  Product product(
      context,
      linear,
      {0, rows},
      active_terms(step, linear.terms(), step.output_rows));
  product.set_input(
      data(x),
      x.cols(),
      static_cast<const CpuNorm*>(args.norm),
      step.output_rows);
  LinearStage stage(
      context, product, data(y), nullptr, {.output_scale = args.scale});
  context.pool.run([&](int thread) {
    product.pack(thread);
    stage.run(thread);
    if (args.softcap == 0) {
      return;
    }
    int threads = context.pool.size();
    int64_t begin = linear.split_by_bytes(thread, threads);
    int64_t end = linear.split_by_bytes(thread + 1, threads);
    for (int r = 0; r < rows; ++r) {
      float* logits = data(y) + r * linear.out();
      for (int64_t o = begin; o < end; ++o) {
        logits[o] = args.softcap * std::tanh(logits[o] / args.softcap);
      }
    }
  });
  return y;
}

}  // namespace mlxcel::cpu
