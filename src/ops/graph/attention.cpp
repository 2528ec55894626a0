#include "ops/graph/attention.h"

#include "core/error.h"

namespace mlxcel::graph {

namespace {

// Columns [begin, begin + heads * dim) of x, normalized, as [rows, heads, dim].
mx::array heads_of(
    const mx::array& x, int begin, int heads, int dim, const Norm* norm) {
  int rows = x.shape(0);
  mx::array part = begin == 0 && heads * dim == x.shape(1)
                       ? x
                       : mx::slice(x, {0, begin}, {rows, begin + heads * dim});
  const auto* graph_norm = static_cast<const GraphNorm*>(norm);
  if (graph_norm && graph_norm->size() != dim) {
    part = graph_norm->apply(part);
  }
  part = mx::reshape(part, {rows, heads, dim});
  return graph_norm && graph_norm->size() == dim ? graph_norm->apply(part)
                                                 : part;
}

// The group's rows of a cache array as [batch, kv_heads, keys, dim].
mx::array cached(
    const Context& context,
    const mx::array& array,
    const AttentionGroup& group) {
  int heads = array.shape(1), dim = array.shape(2);
  mx::array rows = group.slots
                       ? mx::take(array, *group.slots, 0)
                       : mx::slice(
                             array,
                             {group.first_slot, 0, 0},
                             {group.first_slot + group.keys, heads, dim});
  rows = mx::reshape(rows, {group.batch, group.keys, heads, dim});
  return context.to_compute(mx::transpose(rows, {0, 2, 1, 3}));
}

// softmax(cap * tanh(scale * q k^T / cap)) v, for what the fused op lacks.
// q: [batch, heads, rows, dim], k, v: [batch, kv_heads, keys, dim].
mx::array soft_capped(
    const Context& context,
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const AttentionArgs& args,
    const AttentionGroup& group) {
  int batch = q.shape(0), heads = q.shape(1), rows = q.shape(2);
  int kv_heads = k.shape(1), keys = k.shape(2);
  int repeat = heads / kv_heads;
  mx::array grouped = mx::reshape(
      mx::multiply(mx::astype(q, mx::float32), context.scalar(args.scale)),
      {batch, kv_heads, repeat * rows, q.shape(3)});
  mx::array scores =
      mx::matmul(grouped, mx::swapaxes(mx::astype(k, mx::float32), 2, 3));
  scores = mx::multiply(
      mx::tanh(mx::multiply(scores, context.scalar(1 / args.softcap))),
      context.scalar(args.softcap));
  scores = mx::reshape(scores, {batch, heads, rows, keys});
  scores = mx::where(
      group.explicit_mask(),
      scores,
      context.scalar(-std::numeric_limits<float>::infinity()));
  if (!args.sinks.empty()) {
    mx::array sinks =
        mx::array(args.sinks.data(), {1, heads, 1, 1}, mx::float32);
    scores = mx::concatenate(
        {mx::broadcast_to(sinks, {batch, heads, rows, 1}), scores}, 3);
  }
  mx::array weights = mx::softmax(scores, -1, true);
  if (!args.sinks.empty()) {
    weights = mx::slice(weights, {0, 0, 0, 1}, {batch, heads, rows, keys + 1});
  }
  mx::array out = mx::matmul(
      mx::reshape(weights, {batch, kv_heads, repeat * rows, keys}),
      mx::astype(v, mx::float32));
  return mx::astype(
      mx::reshape(out, {batch, heads, rows, v.shape(3)}), q.dtype());
}

mx::array attend(
    const Context& context,
    const mx::array& q,
    const AttentionArgs& args,
    const AttentionGroup& group,
    const GraphKvCache& cache,
    int layer) {
  int dim = args.head_dim;
  mx::array rows = mx::slice(
      q,
      {group.first_row, 0, 0},
      {group.first_row + group.batch * group.rows, args.num_heads, dim});
  // [batch, heads, rows, dim]
  rows = mx::transpose(
      mx::reshape(rows, {group.batch, group.rows, args.num_heads, dim}),
      {0, 2, 1, 3});
  mx::array k = cached(context, cache.keys(layer), group);
  mx::array v = cached(context, cache.values(layer), group);

  mx::array out(0.0f);
  if (args.softcap != 0) {
    out = soft_capped(context, rows, k, v, args, group);
  } else {
    std::optional<mx::array> sinks;
    if (!args.sinks.empty()) {
      sinks = context.to_compute(
          mx::array(args.sinks.data(), {args.num_heads}, mx::float32));
    }
    out = mx::fast::scaled_dot_product_attention(
        rows,
        k,
        v,
        args.scale,
        group.causal ? "causal" : "",
        group.mask,
        sinks);
  }
  return mx::reshape(
      mx::transpose(out, {0, 2, 1, 3}),
      {group.batch * group.rows, args.num_heads * v.shape(3)});
}

}  // namespace

mx::array attention(
    const Context& context,
    Plan& plan,
    const mx::array& qkv,
    const AttentionArgs& args,
    GraphKvCache& cache,
    int layer) {
  int dim = args.head_dim;
  int q_cols = args.num_heads * dim, kv_cols = args.num_kv_heads * dim;
  const auto* rope = static_cast<const GraphRope*>(args.rope);

  mx::array q(0.0f), k(0.0f);
  if (!args.q_norm && !args.k_norm && rope) {
    // One rotation for queries and keys.
    int heads = args.num_heads + args.num_kv_heads;
    mx::array both = rope->apply(heads_of(qkv, 0, heads, dim, nullptr), plan);
    int rows = qkv.shape(0);
    q = mx::slice(both, {0, 0, 0}, {rows, args.num_heads, dim});
    k = mx::slice(both, {0, args.num_heads, 0}, {rows, heads, dim});
  } else {
    q = heads_of(qkv, 0, args.num_heads, dim, args.q_norm);
    k = heads_of(qkv, q_cols, args.num_kv_heads, dim, args.k_norm);
    if (rope) {
      q = rope->apply(q, plan);
      k = rope->apply(k, plan);
    }
  }
  mx::array v =
      heads_of(qkv, q_cols + kv_cols, args.num_kv_heads, dim, nullptr);
  cache.write(layer, plan.slots(cache.num_blocks()), k, v);

  std::vector<mx::array> outputs;
  for (const AttentionGroup& group : plan.groups(args.window)) {
    outputs.push_back(attend(context, q, args, group, cache, layer));
  }
  return outputs.size() == 1 ? outputs.front() : mx::concatenate(outputs, 0);
}

}  // namespace mlxcel::graph
