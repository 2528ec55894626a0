// The CPU backend's products: everything around a weight matrix. A call is one
// fork-join of the pool, norms, bias, adapter terms, activation and residual
// included.
#pragma once

#include "ops/cpu/context.h"

namespace mlxcel::cpu {

std::unique_ptr<Linear> prepare_linear(Context& context, LinearWeights weights);
std::unique_ptr<Experts> prepare_experts(
    Context& context, ExpertWeights weights);
std::unique_ptr<Embedding> prepare_embedding(
    Context& context, EmbeddingWeights weights);

Tensor embed(
    Context& context, const Step& step, const Embedding& table, float scale);
Tensor linear(
    Context& context,
    const Step& step,
    const Tensor& x,
    const Linear& weight,
    const LinearOptions& options);
Tensor mlp(
    Context& context,
    const Step& step,
    const Tensor& x,
    const MlpWeights& weights,
    const LinearOptions& options);
// Several fork-joins: the router's, one for each expert with prompt rows, one
// for all generated rows.
Tensor moe(
    Context& context,
    const Step& step,
    const Tensor& x,
    const MoeWeights& weights,
    const LinearOptions& options);
Tensor head(
    Context& context, const Step& step, const Tensor& x, const HeadArgs& args);

}  // namespace mlxcel::cpu
