#include "core/half.h"
#include "ops/cpu/cpu_linear.h"
#include "ops/cpu/matmul.h"

namespace mlxcel::cpu {

namespace {

float element(const WeightTensor& tensor, int64_t index) {
  const std::byte* at = tensor.data + size_t(index) * size_of(tensor.dtype);
  switch (tensor.dtype) {
    case DType::f16:
      return f16_to_f32(load_unaligned<uint16_t>(at));
    case DType::bf16:
      return bf16_to_f32(load_unaligned<uint16_t>(at));
    default:
      return load_unaligned<float>(at);
  }
}

// x += factor * A[token] B
void add_term(
    const CpuEmbedding& table,
    const LowRankTerm& term,
    int32_t token,
    float factor,
    float* x) {
  std::vector<float> t(size_t(term.rank));
  for (int64_t r = 0; r < term.rank; ++r) {
    int64_t index = term.rank_first ? r * table.vocab() + token
                                    : int64_t(token) * term.rank + r;
    t[size_t(r)] = element(term.a, index);
  }
  std::vector<float> sums(size_t(table.hidden()));
  term_up(
      table.kernels(),
      term,
      0,
      table.hidden(),
      t.data(),
      factor,
      x,
      sums.data());
}

}  // namespace

Tensor embed(
    Context& context, const Step& step, const Embedding& table, float scale) {
  const auto& embedding = static_cast<const CpuEmbedding&>(table);
  int64_t hidden = embedding.hidden();
  Tensor y = context.make(step.num_rows(), hidden);
  std::vector<ActiveTerm> terms = active_terms(step, embedding.terms());
  auto rows = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int32_t token = step.tokens[size_t(row)];
      float* x = data(y) + row * hidden;
      embedding.kernels().read_row(embedding.matrix(), token, 1, x);
      for (const ActiveTerm& active : terms) {
        for (auto [user, factor] : active.rows) {
          if (user == row) {
            add_term(embedding, *active.term, token, factor, x);
          }
        }
      }
      for (int64_t i = 0; i < hidden && scale != 1; ++i) {
        x[i] *= scale;
      }
    }
  };
  constexpr int kFewRows = 16;  // less work than waking the threads
  if (step.num_rows() <= kFewRows) {
    rows(0, step.num_rows());
  } else {
    context.pool.run([&](int thread) {
      auto [begin, end] =
          split_range(step.num_rows(), thread, context.pool.size());
      rows(begin, end);
    });
  }
  return y;
}

}  // namespace mlxcel::cpu
