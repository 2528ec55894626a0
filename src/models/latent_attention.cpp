#include "models/latent_attention.h"

#include "core/error.h"
#include "models/parts.h"
#include "ops/ops.h"

#include <algorithm>
#include <cstring>

namespace mlxcel {

namespace {

// Rows [first, first + count) of a matrix as columns. A packed matrix is
// unpacked: its groups lie along the rows.
MatrixWeight transposed(
    const MatrixWeight& matrix, int64_t first, int64_t count) {
  MatrixWeight out;
  out.name = matrix.name;
  out.out = matrix.in;
  out.in = count;
  DType dtype = matrix.quant.packed() ? DType::f32 : matrix.weight.dtype;
  std::byte* data = nullptr;
  out.weight = make_weight(dtype, {out.out, out.in}, &data);
  std::vector<float> unpacked;
  const std::byte* from = nullptr;
  if (matrix.quant.packed()) {
    unpacked.resize(size_t(count * matrix.in));
    read_rows(matrix, first, count, unpacked.data());
    from = reinterpret_cast<const std::byte*>(unpacked.data());
  } else {
    from = slice_rows(matrix, first, count).weight.data;
  }
  size_t size = size_of(dtype);
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t col = 0; col < matrix.in; ++col) {
      std::memcpy(
          data + size_t(col * count + row) * size,
          from + size_t(row * matrix.in + col) * size,
          size);
    }
  }
  return out;
}

// Outputs [first, first + count) of a term's B as a matrix of f32
// [count, rank], or [rank, count]; zeros where the term adds nothing.
WeightTensor outputs_of(
    const LowRankTerm& term, int64_t first, int64_t count, bool rank_last) {
  std::vector<float> b(size_t(term.rank * term.rows));
  read_as_f32(term.b, b.data());
  std::byte* data = nullptr;
  WeightTensor out = make_weight(
      DType::f32,
      rank_last ? Shape{count, term.rank} : Shape{term.rank, count},
      &data);
  for (int64_t i = 0; i < count; ++i) {
    int64_t row = first + i - term.row_begin;
    for (int64_t r = 0; r < term.rank; ++r) {
      float value = 0;
      if (row >= 0 && row < term.rows) {
        value = b[size_t(
            term.rank_first ? row * term.rank + r : r * term.rows + row)];
      }
      int64_t at = rank_last ? i * term.rank + r : r * count + i;
      std::memcpy(data + size_t(at) * sizeof(float), &value, sizeof(float));
    }
  }
  return out;
}

// A term on kv_b as one on a head's keys. W + B A becomes its transpose, so A
// and B change places.
LowRankTerm key_term(
    const LowRankTerm& term, int64_t first, const LatentDims& dims) {
  LowRankTerm out = term;
  out.rank_first = !term.rank_first;
  out.row_begin = 0;
  out.rows = dims.latent;
  out.a = outputs_of(term, first, dims.plain, !out.rank_first);
  out.b = term.a;
  return out;
}

LowRankTerm value_term(
    const LowRankTerm& term, int64_t first, const LatentDims& dims) {
  LowRankTerm out = term;
  out.row_begin = 0;
  out.rows = dims.value;
  out.b = outputs_of(term, first, dims.value, term.rank_first);
  return out;
}

class Latent : public Sublayer {
 public:
  Latent(const PartBuilder& builder, const LatentAttentionSpec& spec, int layer)
      : dims_(spec.dims), layer_(layer), rope_(builder.rope(spec.rope.get())) {
    bool bias = spec.bias == AttentionBias::all;
    if (dims_.query_rank > 0) {
      q_a_ = builder.linear({role("q_a")}, bias);
      q_norm_ = builder.norm(role("q_a_norm"), spec.norm);
      q_ = builder.linear({role("q_b")}, false);
    } else {
      q_ = builder.linear({role("q")}, false);
    }
    kv_ = builder.linear({role("kv_a")}, bias);
    latent_norm_ = builder.norm(role("kv_a_norm"), spec.norm);
    output_ = builder.linear({role("o")}, bias);
    make_heads(builder);
    args_ = {
        .key_up = key_up_.get(),
        .value_up = value_up_.get(),
        .latent_norm = latent_norm_.get(),
        .rope = rope_.get(),
        .rope_dim = dims_.rope,
        .scale = spec.scale,
        .latent_scale = spec.latent_scale};
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    Backend& backend = flow.backend;
    const Step& step = flow.step;
    Tensor q = x;
    const Norm* norm = around.norm;
    if (q_a_) {
      q = ops::linear(backend, step, x, *q_a_, {.norm = norm});
      norm = q_norm_.get();
    }
    q = ops::linear(backend, step, q, *q_, {.norm = norm});
    Tensor kv = ops::linear(backend, step, x, *kv_, {.norm = around.norm});
    Tensor mixed =
        ops::latent_attention(backend, step, q, kv, args_, flow.cache, layer_);
    LinearOptions after = around;
    after.norm = nullptr;
    return ops::linear(backend, step, mixed, *output_, after);
  }

 private:
  std::string role(std::string_view kind) const {
    return cat("layers.", layer_, ".attention.", kind);
  }

  void make_heads(const PartBuilder& builder) {
    HeadWeights keys, values;
    keys.name = role("key_up");
    values.name = role("value_up");
    std::string joined = role("kv_b");
    if (builder.has(joined)) {
      split_heads(
          builder.matrix(joined), builder.take_terms(joined), keys, values);
    } else {
      for (int head = 0; head < dims_.heads; ++head) {
        std::string name = role(cat("heads.", head, "."));
        add(keys, builder.matrix(name + "key_up"));
        add(values, builder.matrix(name + "value_up"));
      }
    }
    key_up_ = builder.backend().prepare_heads(std::move(keys));
    value_up_ = builder.backend().prepare_heads(std::move(values));
  }

  static void add(HeadWeights& weights, MatrixWeight matrix) {
    LinearWeights& head = weights.heads.emplace_back();
    head.name = weights.name;
    head.parts.push_back(std::move(matrix));
  }

  void split_heads(
      const MatrixWeight& joined,
      const std::vector<LowRankTerm>& terms,
      HeadWeights& keys,
      HeadWeights& values) const {
    for (int64_t head = 0; head < dims_.heads; ++head) {
      int64_t key = head * (dims_.plain + dims_.value);
      int64_t value = key + dims_.plain;
      add(keys, transposed(joined, key, dims_.plain));
      add(values, slice_rows(joined, value, dims_.value));
      for (const LowRankTerm& term : terms) {
        keys.heads.back().terms.push_back(key_term(term, key, dims_));
        values.heads.back().terms.push_back(value_term(term, value, dims_));
      }
    }
  }

  LatentDims dims_;
  int layer_;
  std::shared_ptr<const Rope> rope_;
  std::unique_ptr<Linear> q_a_, q_, kv_, output_;  // null q_a_: none
  std::unique_ptr<Norm> q_norm_, latent_norm_;
  std::unique_ptr<HeadLinear> key_up_, value_up_;
  LatentAttentionArgs args_;
};

}  // namespace

std::vector<RoleShape> LatentAttention::roles(int64_t hidden_size) const {
  const LatentDims& dims = spec_.dims;
  const int64_t heads = dims.heads;
  const int64_t q = heads * (dims.plain + dims.rope);
  std::vector<RoleShape> out;
  if (dims.query_rank > 0) {
    out = {
        {"attention.q_a", dims.query_rank, hidden_size, {}},
        {"attention.q_a_norm", dims.query_rank, 0, {}},
        {"attention.q_b", q, dims.query_rank, {}}};
  } else {
    out = {{"attention.q", q, hidden_size, {}}};
  }
  out.push_back({"attention.kv_a", dims.latent + dims.rope, hidden_size, {}});
  out.push_back({"attention.kv_a_norm", dims.latent, 0, {}});
  out.push_back(
      {"attention.kv_b", heads * (dims.plain + dims.value), dims.latent, {}});
  for (int64_t head = 0; head < heads; ++head) {
    std::string name = cat("attention.heads.", head, ".");
    out.push_back({name + "key_up", dims.latent, dims.plain, {}});
    out.push_back({name + "value_up", dims.value, dims.latent, {}});
  }
  out.push_back({"attention.o", hidden_size, heads * dims.value, {}});
  return out;
}

KvLayerSpec LatentAttention::cache() const {
  return {1, spec_.dims.rope + spec_.dims.latent, 0};
}

int64_t LatentAttention::columns() const {
  const LatentDims& dims = spec_.dims;
  // Queries, latent vector, absorbed queries, their result, its values.
  return int64_t(dims.heads) *
             (dims.plain + 2 * dims.rope + 2 * dims.latent + dims.value) +
         2 * (dims.latent + dims.rope);
}

std::unique_ptr<Sublayer> LatentAttention::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  return std::make_unique<Latent>(builder, spec_, layer);
}

std::vector<NameRule> latent_names(const std::string& block) {
  auto role = [](std::string_view kind) {
    return std::vector<std::string>{cat("layers.{l}.attention.", kind)};
  };
  return {
      {block + ".q_a_proj", role("q_a")},
      {block + ".q_a_layernorm", role("q_a_norm")},
      {block + ".q_b_proj", role("q_b")},
      {block + ".kv_a_proj_with_mqa", role("kv_a")},
      {block + ".kv_a_layernorm", role("kv_a_norm")},
      {block + ".kv_b_proj", role("kv_b")},
      stack_experts(block + ".embed_q", role("heads.{e}.key_up").front()),
      stack_experts(block + ".unembed_out", role("heads.{e}.value_up").front()),
  };
}

}  // namespace mlxcel
