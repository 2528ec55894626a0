#include "ops/ops.h"

#include "core/error.h"

namespace mlxcel::ops {

namespace {

constexpr const char* kCheckConfig =
    "check the sizes in config.json against the weights";

[[noreturn]] void mismatch(
    const char* op, const char* what, std::string why, const char* fix) {
  throw ShapeError(cat(op, ": ", what), std::move(why), fix);
}

std::string shape_of(const Tensor& tensor) {
  return cat("[", tensor.rows(), ", ", tensor.cols(), "]");
}

// The rows of the step's segments are its rows, prompt rows first, and every
// sequence has the blocks that its positions need.
void check_step(const char* op, const Step& step, const KvCache* cache) {
  int row = 0, prompt_rows = 0;
  bool generated = false;
  for (const Segment& segment : step.segments) {
    if (segment.first_row != row || segment.num_rows <= 0 ||
        segment.position < 0 || (segment.prompt && generated)) {
      mismatch(
          op,
          "the step's segments do not follow each other",
          cat("a segment of ",
              segment.num_rows,
              " rows starts at row ",
              segment.first_row,
              ", position ",
              segment.position,
              "; expected row ",
              row),
          "segments cover the rows in order, prompt segments first");
    }
    row += segment.num_rows;
    generated |= !segment.prompt;
    prompt_rows += segment.prompt ? segment.num_rows : 0;
    if (!cache) {
      continue;
    }
    int64_t end = segment.position + segment.num_rows;
    if (int64_t(segment.blocks.size()) * kKvBlockSize < end) {
      mismatch(
          op,
          "the sequence has too few cache blocks",
          cat(segment.blocks.size(),
              " blocks of ",
              kKvBlockSize,
              " positions for ",
              end,
              " positions"),
          "assign blocks to the sequence before the step");
    }
    int64_t needed = (end + kKvBlockSize - 1) / kKvBlockSize;
    for (int64_t i = 0; i < needed; ++i) {
      int32_t block = segment.blocks[size_t(i)];
      if (block < 0 || block >= cache->num_blocks()) {
        mismatch(
            op,
            "a cache block does not exist",
            cat("block ", block, " of ", cache->num_blocks()),
            "reserve the blocks in the cache before the step");
      }
    }
  }
  if (row != step.num_rows() || prompt_rows != step.num_prompt_rows) {
    mismatch(
        op,
        "the step's segments do not cover its rows",
        cat("segments hold ",
            row,
            " rows, ",
            prompt_rows,
            " of them prompt rows; the step has ",
            step.num_rows(),
            " and ",
            step.num_prompt_rows),
        "every row belongs to one segment");
  }
}

void check_rows(const char* op, const Step& step, const Tensor& x) {
  if (x.rows() != step.num_rows()) {
    mismatch(
        op,
        "the input does not fit the step",
        cat("input ", shape_of(x), ", step of ", step.num_rows(), " rows"),
        "pass the tensor that this step's ops returned");
  }
}

void check_norm(
    const char* op, const char* role, const Norm* norm, int64_t size) {
  if (norm && norm->size() != size) {
    mismatch(
        op,
        cat(role, " does not fit").c_str(),
        cat("norm [", norm->size(), "], features [", size, "]"),
        kCheckConfig);
  }
}

void check_options(
    const char* op,
    const Tensor& x,
    int64_t in,
    int64_t out,
    const LinearOptions& options) {
  if (x.cols() != in) {
    mismatch(
        op,
        "the weight does not fit the input",
        cat("weight [", out, ", ", in, "], input ", shape_of(x)),
        kCheckConfig);
  }
  check_norm(op, "the input norm", options.norm, in);
  check_norm(op, "the output norm", options.output_norm, out);
  if (options.residual && (options.residual->rows() != x.rows() ||
                           options.residual->cols() != out)) {
    mismatch(
        op,
        "the residual does not fit the output",
        cat("residual ",
            shape_of(*options.residual),
            ", output [",
            x.rows(),
            ", ",
            out,
            "]"),
        kCheckConfig);
  }
}

// What `up` gives is what `down` reads. Linears, or the experts of a mixture.
template <typename Weights>
void check_inner(
    const char* op, const Weights& up, const Weights& down, bool gated) {
  int64_t inner = gated ? up.out() / 2 : up.out();
  if (down.in() != inner || (gated && up.out() % 2 != 0)) {
    mismatch(
        op,
        "up and down do not fit each other",
        cat(gated ? "gate and up [" : "up [",
            up.out(),
            ", ",
            up.in(),
            "], down [",
            down.out(),
            ", ",
            down.in(),
            "]"),
        kCheckConfig);
  }
}

}  // namespace

Tensor embed(
    Backend& backend, const Step& step, const Embedding& table, float scale) {
  check_step("embed", step, nullptr);
  for (int32_t token : step.tokens) {
    if (token < 0 || token >= table.vocab()) {
      mismatch(
          "embed",
          "a token is outside the table",
          cat("token ",
              token,
              ", table [",
              table.vocab(),
              ", ",
              table.hidden(),
              "]"),
          "check that the tokenizer belongs to this model");
    }
  }
  return backend.embed(step, table, scale);
}

Tensor norm(
    Backend& backend, const Step& step, const Tensor& x, const Norm& norm) {
  check_rows("norm", step, x);
  if (norm.size() == 0 || x.cols() % norm.size() != 0) {
    check_norm("norm", "the weight", &norm, x.cols());
  }
  return backend.norm(step, x, norm);
}

Tensor linear(
    Backend& backend,
    const Step& step,
    const Tensor& x,
    const Linear& weight,
    const LinearOptions& options) {
  check_rows("linear", step, x);
  check_options("linear", x, weight.in(), weight.out(), options);
  return backend.linear(step, x, weight, options);
}

Tensor mlp(
    Backend& backend,
    const Step& step,
    const Tensor& x,
    const MlpWeights& weights,
    const LinearOptions& options) {
  check_rows("mlp", step, x);
  check_options("mlp", x, weights.up->in(), weights.down->out(), options);
  check_inner("mlp", *weights.up, *weights.down, weights.gated);
  if (weights.activation == Activation::xielu && weights.gated) {
    mismatch("mlp", "xIELU has no gate", "a gated MLP", kCheckConfig);
  }
  if (weights.inner_norm && weights.inner_norm->size() != weights.down->in()) {
    mismatch(
        "mlp",
        "the inner norm does not fit",
        cat("norm of ",
            weights.inner_norm->size(),
            ", inner rows of ",
            weights.down->in()),
        kCheckConfig);
  }
  return backend.mlp(step, x, weights, options);
}

namespace {

void check_routing(const MoeWeights& weights, int routes) {
  const char* op = "moe";
  if (weights.experts_per_token <= 0 || weights.experts_per_token > routes) {
    mismatch(
        op,
        "a row cannot use so many experts",
        cat(weights.experts_per_token, " of ", routes),
        "check num_experts_per_tok in config.json");
  }
  if (!weights.selection_bias.empty() &&
      weights.selection_bias.size() != size_t(routes)) {
    mismatch(
        op,
        "the selection bias does not fit the router",
        cat("bias [", weights.selection_bias.size(), "], router ", routes),
        kCheckConfig);
  }
  const ExpertGroups& groups = weights.routing.groups;
  if (groups.count <= 0 || routes % groups.count != 0 || groups.kept <= 0 ||
      groups.kept > groups.count) {
    mismatch(
        op,
        "the experts do not divide into groups",
        cat(routes,
            " experts, ",
            groups.count,
            " groups, of which a row uses ",
            groups.kept),
        "check n_group and topk_group in config.json");
  }
  if (weights.activation == Activation::xielu) {
    mismatch(
        op, "experts have no xIELU", "its numbers are an MLP's", kCheckConfig);
  }
}

}  // namespace

Tensor moe(
    Backend& backend,
    const Step& step,
    const Tensor& x,
    const MoeWeights& weights,
    const LinearOptions& options) {
  const char* op = "moe";
  check_rows(op, step, x);
  check_options(op, x, weights.up->in(), weights.down->out(), options);
  check_inner(op, *weights.up, *weights.down, weights.gated);
  int experts = weights.up->count();
  int routes = experts + weights.identity_experts;
  if (weights.router->in() != x.cols() || weights.router->out() != routes ||
      weights.down->count() != experts) {
    mismatch(
        op,
        "the router does not fit the experts",
        cat("router [",
            weights.router->out(),
            ", ",
            weights.router->in(),
            "], ",
            experts,
            " experts up, ",
            weights.down->count(),
            " down and ",
            weights.identity_experts,
            " that change nothing, input ",
            shape_of(x)),
        "check the number of experts in config.json");
  }
  check_routing(weights, routes);
  if (const Linear* up = weights.shared.up) {
    const Linear* gate = weights.shared_gate;
    check_inner(op, *up, *weights.shared.down, weights.shared.gated);
    if (up->in() != x.cols() || weights.shared.down->out() != x.cols() ||
        (gate && (gate->in() != x.cols() || gate->out() != 1))) {
      mismatch(
          op,
          "the shared expert does not fit the input",
          cat("up [",
              up->out(),
              ", ",
              up->in(),
              "], down [",
              weights.shared.down->out(),
              ", ",
              weights.shared.down->in(),
              "], input ",
              shape_of(x)),
          kCheckConfig);
    }
  }
  return backend.moe(step, x, weights, options);
}

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
      (!args.sinks.empty() || !args.alibi_slopes.empty())) {
    mismatch(
        op,
        "heads in cycles have neither sinks nor slopes",
        cat(args.num_heads, " heads"),
        "no published model has both; check config.json");
  }
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

Tensor add(
    Backend& backend,
    const Step& step,
    const Tensor& x,
    const Tensor& y,
    float scale) {
  check_rows("add", step, x);
  if (x.rows() != y.rows() || x.cols() != y.cols()) {
    mismatch(
        "add",
        "the terms differ in shape",
        cat(shape_of(x), " and ", shape_of(y)),
        kCheckConfig);
  }
  return backend.add(step, x, y, scale);
}

namespace {

void check_columns(
    const char* op, const Tensor& x, int64_t first, int64_t count) {
  if (first < 0 || count < 0 || first + count > x.cols()) {
    mismatch(
        op,
        "columns are outside the tensor",
        cat("columns ", first, " to ", first + count, " of ", shape_of(x)),
        kCheckConfig);
  }
}

void check_like(const char* op, const Tensor& x, const Tensor& y) {
  if (x.rows() != y.rows() || x.cols() != y.cols()) {
    mismatch(
        op,
        "the terms differ in shape",
        cat(shape_of(x), " and ", shape_of(y)),
        kCheckConfig);
  }
}

}  // namespace

Tensor multiply(
    Backend& backend,
    const Step& step,
    const Tensor& x,
    const Tensor* y,
    const MultiplyOptions& options) {
  check_rows("multiply", step, x);
  if (y) {
    check_rows("multiply", step, *y);
    check_columns("multiply", *y, options.column, x.cols());
  }
  return backend.multiply(step, x, y, options);
}

Tensor weighted_sum(
    Backend& backend,
    const Step& step,
    const Tensor& base,
    const std::vector<Tensor>& inputs,
    const Tensor& weights,
    int64_t first) {
  check_rows("weighted_sum", step, base);
  check_rows("weighted_sum", step, weights);
  check_columns("weighted_sum", weights, first, int64_t(inputs.size()));
  for (const Tensor& input : inputs) {
    check_like("weighted_sum", base, input);
  }
  return backend.weighted_sum(step, base, inputs, weights, first);
}

Tensor match_size(
    Backend& backend, const Step& step, const Tensor& x, const Tensor& like) {
  check_rows("match_size", step, x);
  check_like("match_size", x, like);
  return backend.match_size(step, x, like);
}

Tensor cut_below(
    Backend& backend,
    const Step& step,
    const Tensor& x,
    int64_t columns,
    float deviations) {
  check_rows("cut_below", step, x);
  check_columns("cut_below", x, 0, columns);
  return backend.cut_below(step, x, columns, deviations);
}

Tensor head(
    Backend& backend, const Step& step, const Tensor& x, const HeadArgs& args) {
  check_rows("head", step, x);
  if (args.head->in() != x.cols()) {
    mismatch(
        "head",
        "the weight does not fit the input",
        cat("weight [",
            args.head->out(),
            ", ",
            args.head->in(),
            "], input ",
            shape_of(x)),
        kCheckConfig);
  }
  check_norm("head", "the final norm", args.norm, x.cols());
  int32_t last = -1;
  for (int32_t row : step.output_rows) {
    if (row <= last || row >= step.num_rows()) {
      mismatch(
          "head",
          "an output row is not in the step",
          cat("row ",
              row,
              " after ",
              last,
              ", step of ",
              step.num_rows(),
              " rows"),
          "list rows of the step in ascending order");
    }
    last = row;
  }
  return backend.head(step, x, args);
}

}  // namespace mlxcel::ops
