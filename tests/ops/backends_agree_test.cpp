// The two backends run the same random one-layer models over the same steps:
// chunks of prompts, generated rows and both together.
#include "graph_support.h"

#include "core/error.h"

#include <memory>

namespace mlxcel::testing {
namespace {

int pick(int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(generator());
}

Matrix random_matrix(int64_t out, int64_t in) {
  switch (pick(0, 4)) {
    case 0:
      return plain_matrix(out, in, DType::f32);
    case 1:
      return plain_matrix(out, in, DType::bf16);
    case 2:
      return affine_matrix(out, in, 8, 32, DType::f32);
    case 3:
      return affine_matrix(out, in, 4, 32, DType::bf16);
    default:
      return affine_matrix(out, in, 4, 64, DType::f32);
  }
}

NormWeights random_norm(int64_t size, NormKind kind) {
  NormWeights norm;
  norm.kind = kind;
  norm.size = size;
  norm.eps = 1e-5f;
  Values weight = random_values(size_t(size));
  norm.weight = make_float(DType::bf16, {size}, weight);
  if (kind == NormKind::layer) {
    Values bias = random_values(size_t(size));
    norm.bias = make_float(DType::bf16, {size}, bias);
  } else if (pick(0, 1) == 1) {
    norm.weight_offset = 1;
  }
  return norm;
}

// What a random model is made of, the same for both backends.
struct Weights {
  int hidden = 64 * pick(1, 2), inner = 64 * pick(1, 3), vocab = 90;
  int head_dim = 8 * pick(1, 8), kv_heads = pick(1, 3),
      heads = kv_heads * pick(1, 3);
  bool gated = pick(0, 1) == 1, has_rope = pick(0, 3) > 0;
  Activation activation = Activation(pick(1, 5));
  NormKind norm_kind = pick(0, 2) == 0 ? NormKind::layer : NormKind::rms;
  EmbeddingWeights table;
  LinearWeights qkv, out, up, down, head;
  NormWeights attention_norm = random_norm(hidden, norm_kind);
  NormWeights mlp_norm = random_norm(hidden, norm_kind);
  NormWeights mlp_post_norm = random_norm(hidden, norm_kind);
  NormWeights final_norm = random_norm(hidden, norm_kind);
  NormWeights q_norm = random_norm(head_dim, NormKind::rms);
  bool has_q_norm = pick(0, 1) == 1, has_post_norm = pick(0, 1) == 1;
  RopeTable rope;
  AttentionArgs args;
  float logit_softcap = pick(0, 1) == 1 ? 10.0f : 0.0f;

  Weights() {
    table.table = random_matrix(vocab, hidden).weight;
    qkv = stack(
        {{heads * head_dim, hidden},
         {kv_heads * head_dim, hidden},
         {kv_heads * head_dim, hidden}});
    out = stack({{hidden, heads * head_dim}});
    up = gated ? stack({{inner, hidden}, {inner, hidden}})
               : stack({{inner, hidden}});
    down = stack({{hidden, inner}});
    head.name = "head";
    head.parts = {table.table};
    add_terms(qkv);
    add_terms(down);
    rope.dims = pick(0, 1) == 1 ? head_dim : head_dim / 4 * 2;
    rope.interleaved = pick(0, 1) == 1;
    rope.scale = pick(0, 2) == 0 ? 1.3f : 1.0f;
    for (int i = 0; i < rope.dims / 2; ++i) {
      rope.inv_freq.push_back(std::pow(1e4f, -2 * float(i) / float(rope.dims)));
    }
    args.num_heads = heads;
    args.num_kv_heads = kv_heads;
    args.head_dim = head_dim;
    args.scale = 1 / std::sqrt(float(head_dim));
    args.softcap = pick(0, 2) == 0 ? 3.0f : 0.0f;
    args.window = Window(pick(0, 2) == 0 ? pick(1, 80) : 0);
    if (pick(0, 2) == 0) {
      for (double sink : random_values(size_t(heads))) {
        args.sinks.push_back(float(sink));
      }
    }
  }

  LinearWeights stack(const std::vector<std::pair<int, int>>& shapes) {
    LinearWeights linear;
    linear.name = "stack";
    for (auto [rows, columns] : shapes) {
      // Inputs that no group divides stay plain.
      Matrix matrix = columns % 64 == 0
                          ? random_matrix(rows, columns)
                          : plain_matrix(rows, columns, DType::f16);
      linear.parts.push_back(matrix.weight);
      Values bias = random_values(size_t(rows));
      linear.biases.push_back(make_float(DType::f32, {rows}, bias));
    }
    return linear;
  }

  void add_terms(LinearWeights& linear) {
    int64_t row = 0;
    for (const MatrixWeight& part : linear.parts) {
      LowRankTerm term;
      term.adapter = pick(0, 1);
      term.row_begin = row;
      term.rows = part.out;
      term.rank = pick(1, 5);
      term.scale = 0.7f;
      term.rank_first = pick(0, 1) == 1;
      Values a = random_values(size_t(part.in * term.rank), 0.1);
      Values b = random_values(size_t(part.out * term.rank), 0.1);
      term.a = make_float(
          DType::f32,
          term.rank_first ? Shape{term.rank, part.in}
                          : Shape{part.in, term.rank},
          a);
      term.b = make_float(
          DType::f32,
          term.rank_first ? Shape{part.out, term.rank}
                          : Shape{term.rank, part.out},
          b);
      linear.terms.push_back(term);
      row += part.out;
    }
  }
};

class OneLayer {
 public:
  OneLayer(std::unique_ptr<Backend> backend, const Weights& w)
      : backend_(std::move(backend)), w_(w) {
    table_ = backend_->prepare_embedding(w.table);
    qkv_ = backend_->prepare_linear(w.qkv);
    out_ = backend_->prepare_linear(w.out);
    up_ = backend_->prepare_linear(w.up);
    down_ = backend_->prepare_linear(w.down);
    head_ = backend_->prepare_linear(w.head);
    attention_norm_ = backend_->prepare_norm(w.attention_norm);
    mlp_norm_ = backend_->prepare_norm(w.mlp_norm);
    mlp_post_norm_ = backend_->prepare_norm(w.mlp_post_norm);
    final_norm_ = backend_->prepare_norm(w.final_norm);
    q_norm_ = backend_->prepare_norm(w.q_norm);
    rope_ = backend_->prepare_rope(w.rope);
    KvCacheSpec spec;
    spec.dtype = DType::f32;
    spec.layers = {{w.kv_heads, w.head_dim, w.head_dim}};
    cache_ = backend_->make_kv_cache(spec);
    cache_->reserve(8);
  }

  std::vector<float> run(const Step& step) {
    AttentionArgs args = w_.args;
    args.rope = w_.has_rope ? rope_.get() : nullptr;
    args.q_norm = args.k_norm = w_.has_q_norm ? q_norm_.get() : nullptr;
    Tensor x = backend_->embed(step, *table_, 2);
    LinearOptions options;
    options.norm = attention_norm_.get();
    Tensor qkv = backend_->linear(step, x, *qkv_, options);
    Tensor attended = backend_->attention(step, qkv, args, *cache_, 0, nullptr);
    options = {};
    options.residual = &x;
    x = backend_->linear(step, attended, *out_, options);
    MlpWeights mlp;
    mlp.up = up_.get();
    mlp.down = down_.get();
    mlp.activation = w_.activation;
    mlp.gated = w_.gated;
    options = {};
    options.norm = mlp_norm_.get();
    options.output_norm = w_.has_post_norm ? mlp_post_norm_.get() : nullptr;
    options.residual = &x;
    options.output_scale = 0.6f;
    Tensor y = backend_->mlp(step, x, mlp, options);
    y = backend_->add(step, y, x, -0.5f);
    HeadArgs head;
    head.norm = final_norm_.get();
    head.head = head_.get();
    head.scale = 0.5f;
    head.softcap = w_.logit_softcap;
    return read_back(*backend_, backend_->head(step, y, head));
  }

 private:
  std::unique_ptr<Backend> backend_;
  const Weights& w_;
  std::unique_ptr<Embedding> table_;
  std::unique_ptr<Linear> qkv_, out_, up_, down_, head_;
  std::unique_ptr<Norm> attention_norm_, mlp_norm_, mlp_post_norm_, final_norm_,
      q_norm_;
  std::unique_ptr<Rope> rope_;
  std::unique_ptr<KvCache> cache_;
};

struct Part {
  int sequence, rows;
  bool prompt;
};

TEST(Backends, AgreeOnRandomModels) {
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(cat("model ", round));
    Weights weights;
    BackendOptions options;
    options.activation_dtype = DType::f32;
    OneLayer cpu(make_cpu_backend(options), weights);
    OneLayer graph(make_graph_backend(options), weights);

    std::vector<std::vector<int32_t>> blocks = {{6, 1, 4}, {2, 3}, {0, 5}};
    std::vector<std::vector<float>> scales = {{1, 0}, {}, {0.5f, -2}};
    std::vector<int64_t> lengths(3, 0);
    for (const std::vector<Part>& parts : std::vector<std::vector<Part>>{
             {{0, 20, true}, {1, 60, true}},
             {{0, 50, true}, {1, 1, false}},
             {{2, 3, true}, {0, 1, false}, {1, 1, false}},
             {{0, 1, false}, {1, 1, false}, {2, 1, false}},
             {{1, 1, false}}}) {
      Step step;
      for (const Part& part : parts) {
        size_t s = size_t(part.sequence);
        Segment segment;
        segment.first_row = step.num_rows();
        segment.num_rows = part.rows;
        segment.position = lengths[s];
        segment.prompt = part.prompt;
        lengths[s] += part.rows;
        segment.rope_length = lengths[s];
        segment.blocks = blocks[s];
        segment.adapter_scales = scales[s];
        step.segments.push_back(segment);
        for (int i = 0; i < part.rows; ++i) {
          step.tokens.push_back(pick(0, weights.vocab - 1));
        }
        step.output_rows.push_back(step.num_rows() - 1);
        if (part.prompt) {
          step.num_prompt_rows += part.rows;
        }
      }
      std::vector<float> expected = cpu.run(step);
      expect_near(
          graph.run(step), Values(expected.begin(), expected.end()), 5e-4);
    }
  }
}

}  // namespace
}  // namespace mlxcel::testing
