#include "ops/graph/attention.h"

#include "core/error.h"
#include "ops/graph/cuda_attention.h"
#include "ops/graph/linear.h"

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

// What is added to the scores for ALiBi, with the mask inside:
// [batch, heads, rows, keys].
mx::array slope_bias(const AttentionArgs& args, const AttentionGroup& group) {
  mx::array slopes(args.alibi_slopes.data(), {1, args.num_heads, 1, 1});
  return mx::where(
      group.explicit_mask(),
      mx::multiply(slopes, group.distances()),
      mx::array(-std::numeric_limits<float>::infinity()));
}

// value_dim > 0: the values are the last so many features of the keys.
mx::array attend(
    const Context& context,
    const mx::array& q,
    const AttentionArgs& args,
    const AttentionGroup& group,
    const GraphKvCache& cache,
    int layer,
    int value_dim = 0) {
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
  mx::array v = value_dim > 0 ? mx::slice(
                                    k,
                                    {0, 0, 0, dim - value_dim},
                                    {group.batch, k.shape(1), group.keys, dim})
                              : cached(context, cache.values(layer), group);

  mx::array out(0.0f);
  if (args.softcap != 0) {
    out = soft_capped(context, rows, k, v, args, group);
  } else {
    std::optional<mx::array> sinks;
    if (!args.sinks.empty()) {
      sinks = context.to_compute(
          mx::array(args.sinks.data(), {args.num_heads}, mx::float32));
    }
    bool sloped = !args.alibi_slopes.empty();
    bool sparse = args.sparse.size > 0;
    std::optional<mx::array> mask = group.mask;
    if (sloped) {
      mask = slope_bias(args, group);
    }
    if (sparse) {
      mx::array seen = group.in_sight(args.sparse, args.num_heads);
      mx::array never(-std::numeric_limits<float>::infinity());
      mask = sloped ? mx::where(seen, *mask, never)
                    : mx::logical_and(group.explicit_mask(), seen);
    }
    if (sloped) {
      mask = context.to_compute(*mask);
    }
    out = mx::fast::scaled_dot_product_attention(
        rows,
        k,
        v,
        args.scale,
        group.causal && !sloped && !sparse ? "causal" : "",
        mask,
        sinks);
  }
  return mx::reshape(
      mx::transpose(out, {0, 2, 1, 3}),
      {group.batch * group.rows, args.num_heads * v.shape(3)});
}

mx::array limited(const mx::array& x, const AttentionArgs& args) {
  if (args.clip <= 0) {
    return x;
  }
  mx::array bound(args.clip, x.dtype());
  return mx::clip(x, mx::negative(bound), bound);
}

// [rows, outer * inner, dim] with head (o, i) in the place of (i, o).
mx::array swap_heads(const mx::array& x, int outer, int inner) {
  int rows = x.shape(0), dim = x.shape(2);
  return mx::reshape(
      mx::transpose(mx::reshape(x, {rows, outer, inner, dim}), {0, 2, 1, 3}),
      {rows, outer * inner, dim});
}

// Queries or keys: columns of the projection, normalized and turned.
mx::array prepared(
    const Plan& plan,
    const mx::array& x,
    int begin,
    int heads,
    const Norm* norm,
    const AttentionArgs& args) {
  const auto* rope = static_cast<const GraphRope*>(args.rope);
  bool late = args.norm_after_rope && norm != nullptr && rope != nullptr;
  mx::array y = limited(
      heads_of(x, begin, heads, args.head_dim, late ? nullptr : norm), args);
  if (rope) {
    y = rope->apply(y, plan);
  }
  if (late) {
    int width = heads * args.head_dim;
    y = heads_of(
        mx::reshape(y, {x.shape(0), width}), 0, heads, args.head_dim, norm);
  }
  return y;
}

// The rows' keys and values into the cache. `source` holds them behind the
// queries.
void write_keys_and_values(
    Plan& plan,
    const mx::array& source,
    const mx::array& k,
    const AttentionArgs& args,
    GraphKvCache& cache,
    int layer) {
  int k_begin = args.num_heads * args.head_dim;
  int k_width = args.num_kv_heads * args.head_dim;
  bool from_keys = args.key_values == KeyValues::from_keys;
  mx::array v = limited(
      heads_of(
          source,
          from_keys ? k_begin : k_begin + k_width,
          args.num_kv_heads,
          args.head_dim,
          args.v_norm),
      args);
  cache.write(layer, plan.slots(cache.num_blocks()), k, v);
}

// The heads' results side by side, before the gate.
mx::array heads_attention(
    const Context& context,
    Plan& plan,
    const mx::array& qkv,
    const AttentionArgs& args,
    GraphKvCache& cache,
    int layer,
    const mx::array* shared) {
  if (!shared && cuda_takes_attention(context, plan, qkv, args, cache, layer)) {
    return cuda_attention(plan, qkv, args, cache, layer);
  }
  int dim = args.head_dim;
  int q_cols = args.num_heads * dim;
  const mx::array& source = shared ? *shared : qkv;

  mx::array q(0.0f);
  if (args.key_values == KeyValues::cached) {
    plan.slots(cache.num_blocks());  // checks the blocks
    q = prepared(plan, qkv, 0, args.num_heads, args.q_norm, args);
  } else if (!args.q_norm && !args.k_norm && args.rope && !shared) {
    // One rotation for queries and keys.
    int heads = args.num_heads + args.num_kv_heads;
    mx::array both = prepared(plan, qkv, 0, heads, nullptr, args);
    int rows = qkv.shape(0);
    q = mx::slice(both, {0, 0, 0}, {rows, args.num_heads, dim});
    mx::array k = mx::slice(both, {0, args.num_heads, 0}, {rows, heads, dim});
    write_keys_and_values(plan, source, k, args, cache, layer);
  } else {
    q = prepared(plan, qkv, 0, args.num_heads, args.q_norm, args);
    mx::array k =
        prepared(plan, source, q_cols, args.num_kv_heads, args.k_norm, args);
    write_keys_and_values(plan, source, k, args, cache, layer);
  }
  if (args.query_scaling.length != 0) {
    q = mx::astype(
        mx::multiply(q, plan.query_factors(args.query_scaling)), q.dtype());
  }

  bool cycled = args.head_order == HeadOrder::cycled;
  int repeats = args.num_heads / args.num_kv_heads;
  if (cycled) {
    q = swap_heads(q, repeats, args.num_kv_heads);
  }
  std::vector<mx::array> outputs;
  for (const AttentionGroup& group : plan.groups(args.window)) {
    outputs.push_back(attend(context, q, args, group, cache, layer));
  }
  mx::array out =
      outputs.size() == 1 ? outputs.front() : mx::concatenate(outputs, 0);
  if (cycled) {
    mx::array heads = mx::reshape(out, {out.shape(0), args.num_heads, dim});
    out = mx::reshape(
        swap_heads(heads, args.num_kv_heads, repeats), {out.shape(0), q_cols});
  }
  return out;
}

}  // namespace

mx::array attention(
    const Context& context,
    Plan& plan,
    const mx::array& qkv,
    const AttentionArgs& args,
    GraphKvCache& cache,
    int layer,
    const mx::array* shared) {
  mx::array out =
      heads_attention(context, plan, qkv, args, cache, layer, shared);
  if (args.gated) {
    int q_cols = args.num_heads * args.head_dim;
    mx::array gate = mx::slice(
        qkv, {0, qkv.shape(1) - q_cols}, {qkv.shape(0), qkv.shape(1)});
    out = mx::multiply(out, mx::sigmoid(gate));
  }
  return out;
}

// The heads' key matrices are absorbed into the queries and their value
// matrices into the result: every head attends to [rotated key, latent].
mx::array latent_attention(
    const Context& context,
    Plan& plan,
    const mx::array& q,
    const mx::array& kv,
    const LatentAttentionArgs& args,
    GraphKvCache& cache,
    int layer) {
  int rows = q.shape(0), heads = args.num_heads(), rope = args.rope_dim;
  int plain = int(args.key_up->in()), latent = args.latent_dim();
  const auto* turn = static_cast<const GraphRope*>(args.rope);
  auto turned = [&](const mx::array& x) {
    return turn ? turn->apply(x, plan) : x;
  };
  auto each = [&](const HeadLinear& linear, const mx::array& x) {
    return static_cast<const GraphHeads&>(linear).apply(context, x, plan);
  };

  mx::array queries = mx::reshape(q, {rows, heads, plain + rope});
  mx::array absorbed = mx::transpose(
      each(
          *args.key_up,
          mx::transpose(
              mx::slice(queries, {0, 0, 0}, {rows, heads, plain}), {1, 0, 2})),
      {1, 0, 2});
  queries = mx::concatenate(
      {turned(mx::slice(queries, {0, 0, plain}, {rows, heads, plain + rope})),
       absorbed},
      2);

  mx::array vector = mx::slice(kv, {0, 0}, {rows, latent});
  if (const auto* norm = static_cast<const GraphNorm*>(args.latent_norm)) {
    vector = norm->apply(vector);
  }
  if (args.latent_scale != 1) {
    vector = context.scale_add(vector, args.latent_scale, nullptr);
  }
  mx::array key = mx::reshape(
      mx::slice(kv, {0, latent}, {rows, latent + rope}), {rows, 1, rope});
  key =
      mx::concatenate({turned(key), mx::reshape(vector, {rows, 1, latent})}, 2);
  cache.write(layer, plan.slots(cache.num_blocks()), key, key);

  AttentionArgs attention{
      .num_heads = heads,
      .num_kv_heads = 1,
      .head_dim = rope + latent,
      .scale = args.scale};
  std::vector<mx::array> outputs;
  for (const AttentionGroup& group : plan.groups({})) {
    outputs.push_back(
        attend(context, queries, attention, group, cache, layer, latent));
  }
  mx::array mixed =
      outputs.size() == 1 ? outputs.front() : mx::concatenate(outputs, 0);
  mixed = mx::transpose(mx::reshape(mixed, {rows, heads, latent}), {1, 0, 2});
  return mx::reshape(
      mx::transpose(each(*args.value_up, mixed), {1, 0, 2}),
      {rows, heads * int(args.value_up->out())});
}

}  // namespace mlxcel::graph
