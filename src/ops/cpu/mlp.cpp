#include "ops/cpu/linear_stage.h"
#include "ops/cpu/matmul.h"

namespace mlxcel::cpu {

Tensor mlp(
    Context& context,
    const Step& step,
    const Tensor& x,
    const MlpWeights& weights,
    const LinearOptions& options) {
  const auto& up = static_cast<const CpuLinear&>(*weights.up);
  const auto& down = static_cast<const CpuLinear&>(*weights.down);
  Tensor h = context.make(x.rows(), down.in());
  Tensor y = context.make(x.rows(), down.out());
  RowPlan plan{step.num_prompt_rows, int(x.rows()) - step.num_prompt_rows};

  Product up_product(context, up, plan, active_terms(step, up.terms()));
  up_product.set_input(
      data(x), x.cols(), static_cast<const CpuNorm*>(options.norm));
  GateUpStage gate_up(
      context,
      up_product,
      data(h),
      down.in(),
      {.activation = weights.activation,
       .gated = weights.gated,
       .in_turn = weights.in_turn,
       .clamp = weights.clamp,
       .xielu = weights.xielu,
       .gate_scale = weights.gate_scale});

  Product down_product(context, down, plan, active_terms(step, down.terms()));
  down_product.set_input(
      data(h), down.in(), static_cast<const CpuNorm*>(weights.inner_norm));
  LinearStage stage(
      context,
      down_product,
      data(y),
      options.residual != nullptr ? data(*options.residual) : nullptr,
      options);
  context.pool.run([&](int thread) {
    up_product.pack(thread);
    gate_up.run(thread);
    context.pool.barrier();
    down_product.pack(thread);
    stage.run(thread);
  });
  return y;
}

}  // namespace mlxcel::cpu
