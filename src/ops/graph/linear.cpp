#include "ops/graph/linear.h"

#include "core/error.h"

#include <algorithm>
#include <numbers>

namespace mlxcel::graph {

namespace {

bool same_format(const MatrixWeight& a, const MatrixWeight& b) {
  return a.quant == b.quant && a.weight.dtype == b.weight.dtype &&
         a.scales.dtype == b.scales.dtype && a.biases.dtype == b.biases.dtype;
}

}  // namespace

namespace {

// The factor as f32, in its own orientation.
std::vector<float> read_factor(
    const char* which, const WeightTensor& factor, int64_t count) {
  if (element_count(factor.shape) != count) {
    throw AdapterError(
        cat("factor ", which, " of an adapter term has the wrong size"),
        cat("shape ",
            to_string(factor.shape),
            "; the layer needs ",
            count,
            " values"),
        "check that the adapter belongs to this model");
  }
  std::vector<float> values(static_cast<size_t>(count));
  read_as_f32(factor, values.data());
  return values;
}

}  // namespace

LowRankTerms::LowRankTerms(
    const Context& context,
    const std::vector<LowRankTerm>& terms,
    int64_t in,
    int64_t out)
    : a_(0.0f), b_(0.0f) {
  int64_t columns = 0;
  for (const LowRankTerm& term : terms) {
    columns += term.rank;
    adapters_.insert(adapters_.end(), size_t(term.rank), term.adapter);
  }
  std::vector<float> a(size_t(in * columns)), b(size_t(columns * out), 0.0f);
  int64_t first = 0;
  for (const LowRankTerm& term : terms) {
    std::vector<float> read = read_factor("A", term.a, in * term.rank);
    for (int64_t i = 0; i < in; ++i) {
      for (int64_t r = 0; r < term.rank; ++r) {
        a[size_t(i * columns + first + r)] =
            read[size_t(term.rank_first ? r * in + i : i * term.rank + r)];
      }
    }
    if (term.row_begin < 0 || term.row_begin + term.rows > out) {
      throw AdapterError(
          "an adapter term lies outside its layer",
          cat("rows ",
              term.row_begin,
              " to ",
              term.row_begin + term.rows,
              " of ",
              out),
          "check that the adapter belongs to this model");
    }
    read = read_factor("B", term.b, term.rank * term.rows);
    for (int64_t r = 0; r < term.rank; ++r) {
      for (int64_t j = 0; j < term.rows; ++j) {
        size_t at =
            size_t(term.rank_first ? j * term.rank + r : r * term.rows + j);
        b[size_t((first + r) * out + term.row_begin + j)] =
            term.scale * read[at];
      }
    }
    first += term.rank;
  }
  a_ = context.to_compute(mx::array(a.data(), {int_of(in), int_of(columns)}));
  b_ = context.to_compute(mx::array(b.data(), {int_of(columns), int_of(out)}));
  mx::eval(a_, b_);
}

mx::array LowRankTerms::finish(
    const Context& context,
    const mx::array& y,
    const mx::array& low,
    const Plan::RowScales& scales) const {
  mx::array scaled = mx::multiply(low, context.to_compute(scales.scales));
  mx::array sum = mx::add(y, mx::matmul(scaled, b_));
  return scales.active ? mx::where(*scales.active, sum, y) : sum;
}

mx::array LowRankTerms::add_to(
    const Context& context,
    const mx::array& y,
    const mx::array& x,
    Plan& plan) const {
  const Plan::RowScales* scales = plan.row_scales(adapters_);
  return scales ? finish(context, y, mx::matmul(x, a_), *scales) : y;
}

mx::array LowRankTerms::add_rows_to(
    const Context& context,
    const mx::array& y,
    const mx::array& ids,
    Plan& plan) const {
  const Plan::RowScales* scales = plan.row_scales(adapters_);
  return scales ? finish(context, y, mx::take(a_, ids, 0), *scales) : y;
}

GraphLinear::GraphLinear(Context& context, const LinearWeights& weights)
    : Linear(weights.parts.front().in, [&] {
        int64_t out = 0;
        for (const MatrixWeight& part : weights.parts) {
          out += part.out;
        }
        return out;
      }()) {
  for (size_t i = 0; i < weights.parts.size();) {
    std::vector<const MatrixWeight*> run;
    for (size_t first = i; i < weights.parts.size() &&
                           same_format(weights.parts[first], weights.parts[i]);
         ++i) {
      run.push_back(&weights.parts[i]);
    }
    parts_.emplace_back(context, run);
  }
  if (!weights.biases.empty()) {
    std::vector<float> bias(size_t(out()), 0.0f);
    int64_t row = 0;
    bool any = false;
    for (size_t i = 0; i < weights.parts.size(); ++i) {
      if (weights.biases[i]) {
        read_as_f32(*weights.biases[i], bias.data() + row);
        any = true;
      }
      row += weights.parts[i].out;
    }
    if (any) {
      bias_ = context.to_compute(mx::array(bias.data(), {int_of(out())}));
      bias_->eval();
    }
  }
  if (!weights.terms.empty()) {
    terms_.emplace(context, weights.terms, in(), out());
  }
}

mx::array GraphLinear::apply(
    const Context& context,
    const mx::array& input,
    Plan& plan,
    Fusions fusions) const {
  const DeviceMatrix& first = parts_.front();
  int rows = input.shape(0);
  bool alone = parts_.size() == 1 && !bias_ &&
               cuda_takes(context, first, rows) &&
               !(terms_ && terms_->active(plan));
  mx::array x = input;
  if (fusions.norm &&
      !(alone && cuda_takes_norm(context, *fusions.norm, rows, first.in()))) {
    x = fusions.norm->apply(input);
    fusions.norm = nullptr;
  }
  if (alone &&
      (fusions.gate == Activation::none || cuda_takes_gate(fusions.gate)) &&
      (!fusions.residual || fusions.residual->dtype() == context.compute)) {
    return cuda_product(first, x, 1, nullptr, fusions);
  }
  if (fusions.norm) {
    x = fusions.norm->apply(input);
  }

  mx::array y = first.multiply(context, x);
  if (parts_.size() > 1) {
    std::vector<mx::array> pieces{y};
    for (size_t i = 1; i < parts_.size(); ++i) {
      pieces.push_back(parts_[i].multiply(context, x));
    }
    y = mx::concatenate(std::move(pieces), 1);
  }
  if (bias_) {
    y = mx::add(y, *bias_);
  }
  if (terms_) {
    y = terms_->add_to(context, y, x, plan);
  }
  if (fusions.gate != Activation::none) {
    y = gated(fusions.gate, {}, y);
  }
  return fusions.residual ? mx::add(y, *fusions.residual) : y;
}

namespace {

// All experts of one part in one format, so that they can be one array.
std::vector<const MatrixWeight*> stack_of(
    const ExpertWeights& weights, size_t part) {
  std::vector<const MatrixWeight*> stack;
  for (const LinearWeights& expert : weights.experts) {
    const MatrixWeight& matrix = expert.parts[part];
    stack.push_back(&matrix);
    const MatrixWeight& first = *stack.front();
    if (!same_format(first, matrix) || matrix.out != first.out ||
        matrix.in != first.in) {
      throw CheckpointError(
          cat("the experts of ", weights.name, " differ in form"),
          cat(matrix.name,
              " [",
              matrix.out,
              ", ",
              matrix.in,
              "], ",
              to_string(matrix.quant),
              ", ",
              matrix.weight.dtype,
              "; ",
              first.name,
              " [",
              first.out,
              ", ",
              first.in,
              "], ",
              to_string(first.quant),
              ", ",
              first.weight.dtype),
          "use --backend cpu, which takes each expert in its own form");
    }
  }
  return stack;
}

}  // namespace

GraphExperts::GraphExperts(Context& context, const ExpertWeights& weights)
    : Experts(
          int(weights.experts.size()),
          weights.experts.front().parts.front().in,
          [&] {
            int64_t out = 0;
            for (const MatrixWeight& part : weights.experts.front().parts) {
              out += part.out;
            }
            return out;
          }()) {
  for (size_t i = 0; i < weights.experts.front().parts.size(); ++i) {
    parts_.emplace_back(context, stack_of(weights, i));
  }
  if (!weights.experts.front().biases.empty()) {
    std::vector<float> bias(size_t(count()) * size_t(out()));
    float* at = bias.data();
    for (const LinearWeights& expert : weights.experts) {
      for (size_t i = 0; i < expert.parts.size(); ++i) {
        if (expert.biases[i]) {
          read_as_f32(*expert.biases[i], at);
        }
        at += expert.parts[i].out;
      }
    }
    bias_ =
        context.to_compute(mx::array(bias.data(), {count(), int_of(out())}));
    bias_->eval();
  }
}

mx::array GraphExperts::apply(
    const Context& context,
    const mx::array& x,
    const mx::array& ids,
    bool sorted) const {
  std::vector<mx::array> pieces;
  for (const DeviceMatrix& part : parts_) {
    pieces.push_back(part.multiply_blocks(context, x, count(), ids, sorted));
  }
  mx::array y = pieces.size() == 1 ? pieces.front()
                                   : mx::concatenate(std::move(pieces), 1);
  return bias_ ? mx::add(y, mx::take(*bias_, ids, 0)) : y;
}

namespace {

// One matrix a head, all of one form.
std::vector<const MatrixWeight*> matrices_of(const HeadWeights& weights) {
  std::vector<const MatrixWeight*> out;
  for (const LinearWeights& head : weights.heads) {
    const MatrixWeight& matrix = head.parts.front();
    out.push_back(&matrix);
    const MatrixWeight& first = *out.front();
    if (!same_format(first, matrix) || matrix.out != first.out ||
        matrix.in != first.in || head.parts.size() != 1) {
      throw CheckpointError(
          cat("the heads of ", weights.name, " differ in form"),
          cat(matrix.name, ", ", first.name),
          "use --backend cpu, which takes each head in its own form");
    }
  }
  return out;
}

}  // namespace

GraphHeads::GraphHeads(Context& context, const HeadWeights& weights)
    : HeadLinear(
          int(weights.heads.size()),
          weights.heads.front().parts.front().in,
          weights.heads.front().parts.front().out),
      matrices_(context, matrices_of(weights)) {
  bool any = std::any_of(
      weights.heads.begin(), weights.heads.end(), [](const auto& head) {
        return !head.terms.empty();
      });
  for (const LinearWeights& head : weights.heads) {
    if (any) {
      terms_.emplace_back(context, head.terms, in(), out());
    }
  }
}

mx::array GraphHeads::apply(
    const Context& context, const mx::array& x, Plan& plan) const {
  mx::array y = matrices_.multiply_each(context, x, count());
  if (terms_.empty()) {
    return y;
  }
  std::vector<mx::array> heads;
  for (int h = 0; h < count(); ++h) {
    mx::array id(h, mx::int32);
    heads.push_back(terms_[size_t(h)].add_to(
        context, mx::take(y, id, 0), mx::take(x, id, 0), plan));
  }
  return mx::stack(heads, 0);
}

GraphEmbedding::GraphEmbedding(
    Context& context, const EmbeddingWeights& weights)
    : Embedding(weights.table.out, weights.table.in),
      table_(context, {&weights.table}) {
  if (!weights.terms.empty()) {
    // A lookup's term always covers whole rows of the table.
    std::vector<LowRankTerm> terms = weights.terms;
    for (LowRankTerm& term : terms) {
      term.row_begin = 0;
      term.rows = hidden();
    }
    terms_.emplace(context, terms, vocab(), hidden());
  }
}

mx::array GraphEmbedding::apply(
    const Context& context, const mx::array& ids, Plan& plan) const {
  mx::array x = table_.rows(context, ids);
  return terms_ ? terms_->add_rows_to(context, x, ids, plan) : x;
}

mx::array activate(Activation activation, const mx::array& x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::silu:
      return mx::multiply(x, mx::sigmoid(x));
    case Activation::gelu: {
      // x / 2 * (1 + erf(x / sqrt 2))
      mx::array half(0.5f, x.dtype()), one(1.0f, x.dtype());
      mx::array root(1 / std::numbers::sqrt2_v<float>, x.dtype());
      return mx::multiply(
          mx::multiply(x, half), mx::add(one, mx::erf(mx::multiply(x, root))));
    }
    case Activation::gelu_tanh: {
      // x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
      mx::array half(0.5f, x.dtype()), one(1.0f, x.dtype());
      mx::array cubic(0.044715f, x.dtype());
      mx::array root(std::sqrt(2 / std::numbers::pi_v<float>), x.dtype());
      mx::array inner = mx::multiply(
          x, mx::add(one, mx::multiply(cubic, mx::multiply(x, x))));
      return mx::multiply(
          mx::multiply(x, half),
          mx::add(one, mx::tanh(mx::multiply(root, inner))));
    }
    case Activation::relu:
      return mx::maximum(x, mx::array(0.0f, x.dtype()));
    case Activation::relu_squared:
      return mx::square(mx::maximum(x, mx::array(0.0f, x.dtype())));
    case Activation::tanh:
      return mx::tanh(x);
    case Activation::xielu:
      break;  // xielu()
    case Activation::sigmoid:
      return mx::sigmoid(x);
  }
  throw Error(cat("graph backend: unknown activation ", int(activation)));
}

mx::array parted(const mx::array& x) {
  int rows = x.shape(0), inner = x.shape(1) / 2;
  return mx::reshape(
      mx::transpose(mx::reshape(x, {rows, inner, 2}), {0, 2, 1}),
      {rows, 2 * inner});
}

mx::array xielu(const Xielu& numbers, const mx::array& x) {
  auto number = [&](float value) { return mx::array(value, x.dtype()); };
  mx::array above = mx::multiply(number(numbers.alpha_p), mx::square(x));
  mx::array curve =
      mx::subtract(mx::expm1(mx::minimum(x, number(numbers.eps))), x);
  mx::array below = mx::multiply(number(numbers.alpha_n), curve);
  return mx::add(
      mx::where(mx::greater(x, number(0)), above, below),
      mx::multiply(number(numbers.beta), x));
}

mx::array gated(
    Activation activation, const SwigluClamp& clamp, const mx::array& x) {
  int rows = x.shape(0), inner = x.shape(1) / 2;
  mx::array gate = mx::slice(x, {0, 0}, {rows, inner});
  mx::array up = mx::slice(x, {0, inner}, {rows, 2 * inner});
  if (clamp.limit > 0) {
    mx::array limit(clamp.limit, x.dtype()), alpha(clamp.alpha, x.dtype());
    gate = mx::minimum(gate, limit);
    up = mx::clip(up, mx::negative(limit), limit);
    return mx::multiply(
        mx::multiply(gate, mx::sigmoid(mx::multiply(alpha, gate))),
        mx::add(up, mx::array(1.0f, x.dtype())));
  }
  return mx::multiply(activate(activation, gate), up);
}

}  // namespace mlxcel::graph
