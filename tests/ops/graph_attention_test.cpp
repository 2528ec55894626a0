// Attention and the paged cache of the graph backend against f64 loops.
#include "core/error.h"
#include "graph_support.h"

#include <algorithm>

namespace mlxcel::testing {
namespace {

struct Case {
  std::string name;
  AttentionArgs args;
  RopeTable rope;
  bool head_norm = false, wide_norm = false;
  DType cache_dtype = DType::f32;
  // What the backend computes in where the device has it; the values that come
  // in are rounded to it.
  DType activations = DType::f32;
  int first_prompt = 70;  // rows
  double tolerance = 2e-5;
};

// A sequence's rows so far, as the reference sees them.
struct Sequence {
  std::vector<int32_t> blocks;
  Values q, k, v;  // [positions, heads, dim], normed and rotated
  int64_t length = 0;
};

class Reference {
 public:
  explicit Reference(const Case& c) : c_(c) {}

  void rotate(double* head, int64_t position, int64_t rope_length) const {
    const RopeTable& t = c_.rope;
    bool is_long = t.switch_length > 0 && rope_length > t.switch_length;
    const std::vector<float>& frequencies =
        is_long ? t.long_inv_freq : t.inv_freq;
    double scale = is_long ? t.long_scale : t.scale;
    int half = t.dims / 2;
    for (int i = 0; i < half; ++i) {
      double angle = double(position) * frequencies[size_t(i)];
      double* a = head + (t.interleaved ? 2 * i : i);
      double* b = head + (t.interleaved ? 2 * i + 1 : i + half);
      double x = *a, y = *b;
      *a = scale * (x * std::cos(angle) - y * std::sin(angle));
      *b = scale * (x * std::sin(angle) + y * std::cos(angle));
    }
  }

  // The answer of one row: softmax over the keys it sees.
  Values row(const Sequence& s, int64_t p) const {
    const AttentionArgs& a = c_.args;
    size_t dim = size_t(a.head_dim);
    Values out;
    for (int h = 0; h < a.num_heads; ++h) {
      size_t g = size_t(h / (a.num_heads / a.num_kv_heads));
      int64_t size = a.window.size;
      int64_t first = size > 0 ? std::max<int64_t>(0, p - size + 1) : 0;
      Values scores;
      double top = a.sinks.empty() ? -1e300 : a.sinks[size_t(h)];
      for (int64_t j = first; j <= p; ++j) {
        double score = 0;
        for (size_t d = 0; d < dim; ++d) {
          score +=
              s.q[(size_t(p) * size_t(a.num_heads) + size_t(h)) * dim + d] *
              s.k[(size_t(j) * size_t(a.num_kv_heads) + g) * dim + d];
        }
        score *= a.scale;
        if (a.softcap != 0) {
          score = a.softcap * std::tanh(score / a.softcap);
        }
        scores.push_back(score);
        top = std::max(top, score);
      }
      double sum = a.sinks.empty() ? 0 : std::exp(a.sinks[size_t(h)] - top);
      for (double& score : scores) {
        score = std::exp(score - top);
        sum += score;
      }
      for (size_t d = 0; d < dim; ++d) {
        double value = 0;
        for (int64_t j = first; j <= p; ++j) {
          value += scores[size_t(j - first)] / sum *
                   s.v[(size_t(j) * size_t(a.num_kv_heads) + g) * dim + d];
        }
        out.push_back(value);
      }
    }
    return out;
  }

 private:
  const Case& c_;
};

void run_case(const Case& c) {
  SCOPED_TRACE(c.name);
  auto backend = graph_backend(c.activations);
  AttentionArgs args = c.args;
  int dim = args.head_dim;
  int q_cols = args.num_heads * dim, kv_cols = args.num_kv_heads * dim;
  std::unique_ptr<Rope> rope;
  if (c.rope.dims > 0) {
    rope = backend->prepare_rope(c.rope);
    args.rope = rope.get();
  }
  Values q_weight, k_weight;
  std::unique_ptr<Norm> q_norm, k_norm;
  if (c.head_norm || c.wide_norm) {
    auto make = [&](int size, Values& weight) {
      weight = random_values(size_t(size));
      NormWeights weights;
      weights.size = size;
      weights.eps = 1e-6f;
      weights.weight = make_float(DType::f32, {size}, weight);
      return backend->prepare_norm(weights);
    };
    q_norm = make(c.wide_norm ? q_cols : dim, q_weight);
    k_norm = make(c.wide_norm ? kv_cols : dim, k_weight);
    args.q_norm = q_norm.get();
    args.k_norm = k_norm.get();
  }

  // A second layer checks that layers do not share rows.
  KvCacheSpec spec;
  spec.dtype = c.cache_dtype;
  spec.layers.assign(2, {args.num_kv_heads, dim, dim});
  auto cache = backend->make_kv_cache(spec);
  int first_blocks = c.first_prompt > 2 * kKvBlockSize ? 12 : 4;
  cache->reserve(first_blocks);
  Reference reference(c);
  // Blocks out of order; the third sequence's are in a row.
  std::vector<Sequence> sequences(3);
  sequences[0].blocks = {3, 0, 6, 9, 11, 10};
  sequences[1].blocks = {5, 1};
  sequences[2].blocks = {7, 8};

  struct Part {
    int sequence, rows;
    bool prompt;
  };
  // Chunked prompts, prompts beside generated rows, batches of generated rows.
  std::vector<std::vector<Part>> steps = {
      {{0, c.first_prompt, true}},
      {{0, 5, true}, {1, 3, true}},
      {{2, 66, true}, {0, 1, false}, {1, 1, false}},
      {{0, 1, false}, {1, 1, false}, {2, 1, false}},
      {{2, 1, false}},
      {{0, 2, false}, {1, 2, false}},
  };
  int step_number = 0;
  for (const std::vector<Part>& parts : steps) {
    SCOPED_TRACE(cat("step ", step_number++));
    cache->reserve(step_number == 1 ? first_blocks : 12);
    Step step;
    for (const Part& part : parts) {
      Sequence& s = sequences[size_t(part.sequence)];
      Segment segment;
      segment.first_row = step.num_rows();
      segment.num_rows = part.rows;
      segment.position = s.length;
      segment.prompt = part.prompt;
      segment.rope_length =
          part.prompt
              ? (part.sequence == 0 ? c.first_prompt + 5 : s.length + part.rows)
              : s.length + 1;
      int64_t blocks = (s.length + part.rows + kKvBlockSize - 1) / kKvBlockSize;
      segment.blocks = std::span<const int32_t>(s.blocks).first(size_t(blocks));
      step.segments.push_back(segment);
      step.tokens.insert(step.tokens.end(), size_t(part.rows), 0);
      if (part.prompt) {
        step.num_prompt_rows += part.rows;
      }
    }
    size_t cols = size_t(q_cols + 2 * kv_cols);
    Values qkv = random_values(size_t(step.num_rows()) * cols);
    Values other = random_values(qkv.size());
    make_float(c.activations, {int64_t(qkv.size())}, qkv);  // rounds them
    Tensor out = backend->attention(
        step,
        tensor_of(*backend, qkv, int64_t(cols)),
        args,
        *cache,
        1,
        nullptr);
    backend->attention(
        step,
        tensor_of(*backend, other, int64_t(cols)),
        args,
        *cache,
        0,
        nullptr);

    Values expected;
    for (const Segment& segment : step.segments) {
      Sequence& s = sequences[size_t(
          parts[size_t(&segment - step.segments.data())].sequence)];
      for (int i = 0; i < segment.num_rows; ++i) {
        const double* row = &qkv[size_t(segment.first_row + i) * cols];
        Values q(row, row + q_cols), k(row + q_cols, row + q_cols + kv_cols),
            v(row + q_cols + kv_cols, row + cols);
        if (!q_weight.empty()) {
          q = rms_norm(q, q_weight.size(), q_weight, 1e-6);
          k = rms_norm(k, k_weight.size(), k_weight, 1e-6);
        }
        for (int h = 0; c.rope.dims > 0 && h < args.num_heads; ++h) {
          reference.rotate(&q[size_t(h * dim)], s.length, segment.rope_length);
        }
        for (int h = 0; c.rope.dims > 0 && h < args.num_kv_heads; ++h) {
          reference.rotate(&k[size_t(h * dim)], s.length, segment.rope_length);
        }
        make_float(c.cache_dtype, {int64_t(k.size())}, k);  // rounds them
        make_float(c.cache_dtype, {int64_t(v.size())}, v);
        s.q.insert(s.q.end(), q.begin(), q.end());
        s.k.insert(s.k.end(), k.begin(), k.end());
        s.v.insert(s.v.end(), v.begin(), v.end());
        Values answer = reference.row(s, s.length);
        ++s.length;
        expected.insert(expected.end(), answer.begin(), answer.end());
      }
    }
    expect_near(read_back(*backend, out), expected, c.tolerance);
  }
}

RopeTable rope_table(int dims, float base = 1e4f) {
  RopeTable table;
  table.dims = dims;
  for (int i = 0; i < dims / 2; ++i) {
    table.inv_freq.push_back(std::pow(base, -2.0f * float(i) / float(dims)));
  }
  return table;
}

Case base_case(std::string name) {
  Case c;
  c.name = std::move(name);
  c.args.num_heads = 4;
  c.args.num_kv_heads = 2;
  c.args.head_dim = 16;
  c.args.scale = 0.25f;
  c.rope = rope_table(16);
  return c;
}

TEST(GraphAttention, GroupedHeadsWithRope) {
  run_case(base_case("plain"));
}

TEST(GraphAttention, NoRope) {
  Case c = base_case("no rope");
  c.rope = {};
  run_case(c);
}

TEST(GraphAttention, InterleavedPartialScaledRope) {
  Case c = base_case("partial");
  c.rope = rope_table(8);
  c.rope.interleaved = true;
  c.rope.scale = 1.2f;
  run_case(c);
}

TEST(GraphAttention, LongRopeSwitchesByLength) {
  Case c = base_case("longrope");
  c.rope.switch_length = 67;
  for (float frequency : c.rope.inv_freq) {
    c.rope.long_inv_freq.push_back(frequency / 3);
  }
  c.rope.long_scale = 1.1f;
  run_case(c);
}

TEST(GraphAttention, Window) {
  for (int64_t window : {1, 9, 64, 70, 1000}) {
    Case c = base_case(cat("window ", window));
    c.args.window = window;
    run_case(c);
  }
}

TEST(GraphAttention, SoftcapWithAndWithoutWindowAndSinks) {
  Case c = base_case("softcap");
  c.args.softcap = 2;
  run_case(c);
  c.name = "softcap, window, sinks";
  c.args.window = 10;
  c.args.sinks = {0.5f, -1, 2, 0};
  run_case(c);
}

TEST(GraphAttention, Sinks) {
  Case c = base_case("sinks");
  c.args.sinks = {0.5f, -1, 2, 0};
  run_case(c);
  c.name = "sinks, window";
  c.args.window = 12;
  run_case(c);
}

TEST(GraphAttention, QueryAndKeyNorms) {
  Case c = base_case("a head");
  c.head_norm = true;
  run_case(c);
  c = base_case("whole projection");
  c.wide_norm = true;
  run_case(c);
}

TEST(GraphAttention, OneHeadOfOddSize) {
  Case c = base_case("odd");
  c.args.num_heads = 3;
  c.args.num_kv_heads = 1;
  c.args.head_dim = 20;
  c.rope = rope_table(20);
  run_case(c);
}

TEST(GraphAttention, HeadsOfTheFusedKernels) {
  for (int dim : {64, 128}) {
    Case c = base_case(cat("head size ", dim));
    c.args.head_dim = dim;
    c.args.scale = 1 / std::sqrt(float(dim));
    c.rope = rope_table(dim);
    c.tolerance = 5e-5;
    run_case(c);
  }
}

TEST(GraphAttention, CacheInBf16) {
  Case c = base_case("bf16 cache");
  c.cache_dtype = DType::bf16;
  c.tolerance = 2e-2;  // a rounding may fall the other way
  run_case(c);
}

// GPUs compute in these; generated rows go through kernels of their own there.
TEST(GraphAttention, HalfPrecision) {
  for (DType type : {DType::f16, DType::bf16}) {
    auto half = [&](const char* name, int dim) {
      Case c = base_case(cat(name, ", ", type, ", head size ", dim));
      c.activations = c.cache_dtype = type;
      c.args.head_dim = dim;
      c.args.scale = 1 / std::sqrt(float(dim));
      c.rope = rope_table(dim);
      c.tolerance = type == DType::f16 ? 5e-3 : 4e-2;
      return c;
    };
    for (int dim : {64, 128, 256}) {
      run_case(half("plain", dim));
    }
    Case c = half("many keys, three heads a key head", 64);
    c.first_prompt = 300;
    c.args.num_heads = 6;
    run_case(c);
    c = half("window, one head a key head", 128);
    c.first_prompt = 300;
    c.args.num_kv_heads = 4;
    for (int64_t window : {1, 64, 200}) {
      c.args.window = window;
      run_case(c);
    }
    c = half("norms, partial rotation of neighbours, scaled", 128);
    c.head_norm = true;
    c.rope = rope_table(64);
    c.rope.interleaved = true;
    c.rope.scale = 1.2f;
    c.tolerance *= 2;  // scores are larger
    run_case(c);
    c = half("no rotation, ten heads a key head", 128);
    c.args.num_heads = 20;
    c.rope = {};
    run_case(c);
  }
}

TEST(GraphKvCache, CopiesBlocksOfAllLayers) {
  auto backend = graph_backend();
  AttentionArgs args;
  args.num_heads = 1;
  args.num_kv_heads = 1;
  args.head_dim = 8;
  args.scale = 1;
  KvCacheSpec spec;
  spec.dtype = DType::f32;
  spec.layers.assign(1, {1, 8, 8});
  auto cache = backend->make_kv_cache(spec);
  cache->reserve(3);
  EXPECT_GE(cache->num_blocks(), 3);

  std::vector<int32_t> original = {0}, copy = {2};
  auto attend = [&](const std::vector<int32_t>& blocks,
                    int64_t position,
                    const Values& qkv) {
    Step step = prompt_step(int(qkv.size() / 24));
    step.segments[0].position = position;
    step.segments[0].blocks = blocks;
    return read_back(
        *backend,
        backend->attention(
            step, tensor_of(*backend, qkv, 24), args, *cache, 0, nullptr));
  };
  attend(original, 0, random_values(10 * 24));
  cache->copy_block(0, 2);
  Values next = random_values(24);
  EXPECT_EQ(attend(original, 10, next), attend(copy, 10, next));
  // What is written to the copy later leaves the original alone.
  Values later = random_values(24);
  attend(copy, 9, random_values(24));
  EXPECT_NE(attend(original, 11, later), attend(copy, 11, later));

  EXPECT_THROW(cache->copy_block(0, 100), ShapeError);
}

TEST(GraphKvCache, RefusesBlocksThatDoNotFit) {
  auto backend = graph_backend();
  AttentionArgs args;
  args.num_heads = 1;
  args.num_kv_heads = 1;
  args.head_dim = 8;
  args.scale = 1;
  KvCacheSpec spec;
  spec.layers.assign(1, {1, 8, 8});
  auto cache = backend->make_kv_cache(spec);
  cache->reserve(2);
  Tensor qkv = tensor_of(*backend, random_values(2 * 24), 24);
  Step step = prompt_step(2);
  step.segments[0].position = 63;
  std::vector<int32_t> blocks = {0};
  step.segments[0].blocks = blocks;
  try {
    backend->attention(step, qkv, args, *cache, 0, nullptr);
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_STREQ(
        error.what(),
        "the KV blocks of a sequence do not cover its rows: 1 blocks of 64 "
        "positions, the last row is at position 64");
  }
  blocks = {0, 9};
  step.segments[0].blocks = blocks;
  EXPECT_THROW(
      backend->attention(step, qkv, args, *cache, 0, nullptr), ShapeError);
}

}  // namespace
}  // namespace mlxcel::testing
