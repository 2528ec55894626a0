// The attention ops: what ops.h checks for both backends.
#include "ops/checks.h"
#include "ops/ops.h"

namespace mlxcel::ops {

namespace {

// Columns of qkv: q, then k, v and gate where they stand in it.
int64_t attention_columns(const AttentionArgs& args, bool shared) {
  int64_t heads = args.num_heads * (args.gated ? 2 : 1);
  if (!shared && args.key_values == KeyValues::projected) {
    heads += 2 * args.num_kv_heads;
  } else if (!shared && args.key_values == KeyValues::from_keys) {
    heads += args.num_kv_heads;
  }
  return heads * args.head_dim;
}

void check_sparse(const char* op, const AttentionArgs& args) {
  const SparseBlocks& sparse = args.sparse;
  if (sparse.size == 0) {
    return;
  }
  if ((sparse.size != 32 && sparse.size != 64) || sparse.local < 1 ||
      sparse.stride < 1) {
    mismatch(
        op,
        "sparse blocks have 32 or 64 positions",
        cat("blocks of ",
            sparse.size,
            ", ",
            sparse.local,
            " of them local, stride ",
            sparse.stride),
        "check the blocksparse keys in config.json");
  }
  if (args.softcap > 0) {
    mismatch(
        op,
        "scores of sparse blocks cannot be capped",
        cat("soft cap ", args.softcap),
        "no published model has both; check config.json");
  }
}

void check_heads(const char* op, const AttentionArgs& args) {
  if (args.num_heads <= 0 || args.num_kv_heads <= 0 || args.head_dim <= 0 ||
      args.num_heads % args.num_kv_heads != 0) {
    mismatch(
        op,
        "heads do not divide into groups",
        cat(args.num_heads,
            " query heads, ",
            args.num_kv_heads,
            " key heads, head size ",
            args.head_dim),
        "check num_attention_heads and num_key_value_heads in config.json");
  }
  auto check_head_norm = [&](const char* role, const Norm* norm, int heads) {
    if (norm && norm->size() != args.head_dim) {
      check_norm(op, role, norm, int64_t(heads) * args.head_dim);
    }
  };
  check_head_norm("the query norm", args.q_norm, args.num_heads);
  check_head_norm("the key norm", args.k_norm, args.num_kv_heads);
  check_norm(op, "the value norm", args.v_norm, args.head_dim);
  if (args.rope && args.rope->dims() > args.head_dim) {
    mismatch(
        op,
        "the rotary table is wider than a head",
        cat("table ", args.rope->dims(), ", head size ", args.head_dim),
        "check partial_rotary_factor and head_dim in config.json");
  }
  auto check_each_head = [&](const char* what, const auto& values) {
    if (!values.empty() && values.size() != size_t(args.num_heads)) {
      mismatch(
          op,
          cat(what, " do not fit the heads").c_str(),
          cat(what, " [", values.size(), "], heads ", args.num_heads),
          kCheckConfig);
    }
  };
  check_each_head("sinks", args.sinks);
  check_each_head("slopes", args.alibi_slopes);
  if (!args.alibi_slopes.empty() && args.softcap > 0) {
    mismatch(
        op,
        "scores with slopes cannot be capped",
        cat("soft cap ", args.softcap),
        "no published model has both; check config.json");
  }
  if (args.head_order == HeadOrder::cycled &&
      (!args.sinks.empty() || !args.alibi_slopes.empty() ||
       args.sparse.size != 0)) {
    mismatch(
        op,
        "heads in cycles have neither sinks, slopes nor sparse blocks",
        cat(args.num_heads, " heads"),
        "no published model has both; check config.json");
  }
  check_sparse(op, args);
}

// The cache keeps what the op writes.
void check_layer(
    const char* op,
    const KvCache& cache,
    int layer,
    const KvLayerSpec& wanted) {
  const auto& layers = cache.spec().layers;
  if (layer < 0 || size_t(layer) >= layers.size()) {
    mismatch(
        op,
        "the cache has no such layer",
        cat("layer ", layer, " of ", layers.size()),
        "make the cache from the model's own specification");
  }
  const KvLayerSpec& spec = layers[size_t(layer)];
  if (spec.num_kv_heads != wanted.num_kv_heads || spec.k_dim != wanted.k_dim ||
      spec.v_dim != wanted.v_dim) {
    mismatch(
        op,
        "the cache's layer does not fit",
        cat("cache ",
            spec.num_kv_heads,
            " heads of ",
            spec.k_dim,
            " and ",
            spec.v_dim,
            ", attention ",
            wanted.num_kv_heads,
            " heads of ",
            wanted.k_dim),
        "make the cache from the model's own specification");
  }
}

}  // namespace

Tensor attention(
    Backend& backend,
    const Step& step,
    const Tensor& qkv,
    const AttentionArgs& args,
    KvCache& cache,
    int layer,
    const Tensor* shared) {
  const char* op = "attention";
  check_rows(op, step, qkv);
  check_step(op, step, &cache);
  check_heads(op, args);
  check_layer(
      op, cache, layer, {args.num_kv_heads, args.head_dim, args.head_dim});
  int64_t cols = attention_columns(args, shared != nullptr);
  if (qkv.cols() != cols) {
    mismatch(
        op,
        "the projection does not fit the heads",
        cat("projection ",
            shape_of(qkv),
            ", expected [",
            qkv.rows(),
            ", ",
            cols,
            "] for ",
            args.num_heads,
            " query and ",
            args.num_kv_heads,
            " key heads of ",
            args.head_dim),
        kCheckConfig);
  }
  int64_t shared_cols =
      int64_t(args.num_heads + 2 * args.num_kv_heads) * args.head_dim;
  if (shared && (shared->rows() != qkv.rows() || shared->cols() < shared_cols ||
                 args.key_values != KeyValues::projected)) {
    mismatch(
        op,
        "the shared projection does not fit the heads",
        cat("projection ",
            shape_of(*shared),
            ", expected [",
            qkv.rows(),
            ", ",
            shared_cols,
            "]"),
        kCheckConfig);
  }
  return backend.attention(step, qkv, args, cache, layer, shared);
}

Tensor latent_attention(
    Backend& backend,
    const Step& step,
    const Tensor& q,
    const Tensor& kv,
    const LatentAttentionArgs& args,
    KvCache& cache,
    int layer) {
  const char* op = "latent attention";
  check_rows(op, step, q);
  check_rows(op, step, kv);
  check_step(op, step, &cache);
  const HeadLinear& key = *args.key_up;
  const HeadLinear& value = *args.value_up;
  if (key.count() != value.count() || key.out() != value.in()) {
    mismatch(
        op,
        "the matrices of keys and values do not fit each other",
        cat(key.count(),
            " of [",
            key.out(),
            ", ",
            key.in(),
            "] and ",
            value.count(),
            " of [",
            value.out(),
            ", ",
            value.in(),
            "]"),
        kCheckConfig);
  }
  int64_t q_cols = key.count() * (key.in() + args.rope_dim);
  int64_t kv_cols = key.out() + args.rope_dim;
  if (q.cols() != q_cols || kv.cols() != kv_cols || args.rope_dim < 0 ||
      args.rope_dim % 2 != 0) {
    mismatch(
        op,
        "the projections do not fit the heads",
        cat("queries ",
            shape_of(q),
            ", latent ",
            shape_of(kv),
            ", expected ",
            q_cols,
            " and ",
            kv_cols,
            " columns with ",
            args.rope_dim,
            " rotated features, an even number"),
        kCheckConfig);
  }
  check_norm(op, "the latent norm", args.latent_norm, key.out());
  if (args.rope && args.rope->dims() > args.rope_dim) {
    mismatch(
        op,
        "the rotary table is wider than the rotated features",
        cat("table ", args.rope->dims(), ", features ", args.rope_dim),
        "check qk_rope_head_dim in config.json");
  }
  check_layer(op, cache, layer, {1, int(kv_cols), 0});
  return backend.latent_attention(step, q, kv, args, cache, layer);
}

}  // namespace mlxcel::ops
