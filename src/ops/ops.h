// The ops that models are written in. Each checks its arguments and calls the
// backend; a mismatch throws ShapeError with both shapes.
#pragma once

#include "ops/backend.h"

namespace mlxcel::ops {

// Rows of the table times `scale`. Throws when a token is outside the table.
Tensor embed(
    Backend& backend,
    const Step& step,
    const Embedding& table,
    float scale = 1);

Tensor norm(
    Backend& backend, const Step& step, const Tensor& x, const Norm& norm);

// y = residual + output_scale * output_norm(norm(x) W^T + bias + adapter terms)
Tensor linear(
    Backend& backend,
    const Step& step,
    const Tensor& x,
    const Linear& weight,
    const LinearOptions& options = {});

// y = residual + output_scale * output_norm(down(act(gate) * up)) of norm(x)
Tensor mlp(
    Backend& backend,
    const Step& step,
    const Tensor& x,
    const MlpWeights& weights,
    const LinearOptions& options = {});

// The same around a mixture of experts, of which each row uses a few.
Tensor moe(
    Backend& backend,
    const Step& step,
    const Tensor& x,
    const MoeWeights& weights,
    const LinearOptions& options = {});

// Causal attention of the step's rows over their sequences' cached positions.
Tensor attention(
    Backend& backend,
    const Step& step,
    const Tensor& qkv,
    const AttentionArgs& args,
    KvCache& cache,
    int layer,
    const Tensor* shared = nullptr);

// Causal attention over latent vectors; see LatentAttentionArgs.
Tensor latent_attention(
    Backend& backend,
    const Step& step,
    const Tensor& q,
    const Tensor& kv,
    const LatentAttentionArgs& args,
    KvCache& cache,
    int layer);

Tensor add(
    Backend& backend,
    const Step& step,
    const Tensor& x,
    const Tensor& y,
    float scale = 1);

Tensor head(
    Backend& backend, const Step& step, const Tensor& x, const HeadArgs& args);

}  // namespace mlxcel::ops
