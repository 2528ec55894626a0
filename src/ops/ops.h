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

// Each run of norm.size() columns by itself.
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

// One of the mixers of ops/recurrence.h; checks its columns and its state.
Tensor recurrence(
    Backend& backend,
    const Step& step,
    const Recurrence& op,
    KvCache& cache,
    int layer);

Tensor add(
    Backend& backend,
    const Step& step,
    const Tensor& x,
    const Tensor& y,
    float scale = 1);

// scale * activation(x) * y[:, column : column + columns of x]; null y: ones
Tensor multiply(
    Backend& backend,
    const Step& step,
    const Tensor& x,
    const Tensor* y,
    const MultiplyOptions& options);

// base + sum over k of weights[:, first + k] * inputs[k], row by row
Tensor weighted_sum(
    Backend& backend,
    const Step& step,
    const Tensor& base,
    const std::vector<Tensor>& inputs,
    const Tensor& weights,
    int64_t first);

// x with the root mean square of `like`, row by row
Tensor match_size(
    Backend& backend, const Step& step, const Tensor& x, const Tensor& like);

// The first `columns` of x less mean and `deviations` standard deviations, 0
// below, row by row.
Tensor cut_below(
    Backend& backend,
    const Step& step,
    const Tensor& x,
    int64_t columns,
    float deviations);

Tensor head(
    Backend& backend, const Step& step, const Tensor& x, const HeadArgs& args);

}  // namespace mlxcel::ops
