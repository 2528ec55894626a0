#include "ops/ops.h"
#include "ops/checks.h"

namespace mlxcel::ops {

namespace {

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
  if (weights.in_turn && !weights.gated) {
    mismatch("mlp", "a plain MLP has no gate", "rows in turn", kCheckConfig);
  }
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
  if (!weights.share_scale.empty() &&
      weights.share_scale.size() != size_t(routes)) {
    mismatch(
        op,
        "the factors on the shares do not fit the router",
        cat("factors [", weights.share_scale.size(), "], router ", routes),
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
  if (weights.logits != nullptr) {
    if (weights.logits->rows() != x.rows() ||
        weights.logits->cols() != routes) {
      mismatch(
          op,
          "the router's result does not fit the experts",
          cat("result ",
              shape_of(*weights.logits),
              ", ",
              routes,
              " experts, input ",
              shape_of(x)),
          "check the number of experts in config.json");
    }
  } else if (
      weights.router->in() != x.cols() || weights.router->out() != routes) {
    mismatch(
        op,
        "the router does not fit the experts",
        cat("router [",
            weights.router->out(),
            ", ",
            weights.router->in(),
            "], ",
            routes,
            " experts, input ",
            shape_of(x)),
        "check the number of experts in config.json");
  }
  if (weights.down->count() != experts) {
    mismatch(
        op,
        "the experts' two matrices differ in number",
        cat(experts,
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
