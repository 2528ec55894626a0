#include "ops/cpu/linear_stage.h"
#include "ops/cpu/matmul.h"

namespace mlxcel::cpu {

Tensor linear(
    Context& context,
    const Step& step,
    const Tensor& x,
    const Linear& weight,
    const LinearOptions& options) {
  const auto& linear = static_cast<const CpuLinear&>(weight);
  Tensor y = context.make(x.rows(), linear.out());
  int rows = int(x.rows());
  Product product(
      context,
      linear,
      {step.num_prompt_rows, rows - step.num_prompt_rows},
      active_terms(step, linear.terms()));
  product.set_input(
      data(x), x.cols(), static_cast<const CpuNorm*>(options.norm));
  LinearStage stage(
      context,
      product,
      data(y),
      options.residual != nullptr ? data(*options.residual) : nullptr,
      options);
  context.pool.run([&](int thread) {
    product.pack(thread);
    stage.run(thread);
  });
  return y;
}

}  // namespace mlxcel::cpu
