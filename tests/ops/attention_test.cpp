// Attention of the CPU backend against a plain loop in double precision, and
// the same bits however rows are cut, batched and threaded.
#include "ops/cpu/attention.h"

#include "core/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace mlxcel::cpu {
namespace {

struct Case {
  std::string name;
  int heads = 4, kv_heads = 2, head_dim = 64;
  int64_t window = 0;
  float softcap = 0;
  bool sinks = false;
  int rope_dims = 0;  // 0: none
  bool interleaved = false;
  int norm = 0;  // 1: on each head, 2: on the whole projection
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

std::vector<float> random_values(size_t count, uint32_t seed, float scale = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(generator);
  }
  return values;
}

WeightTensor weight_of(const std::vector<float>& values) {
  auto owner = std::make_shared<std::vector<float>>(values);
  WeightTensor tensor;
  tensor.dtype = DType::f32;
  tensor.shape = {int64_t(values.size())};
  tensor.data = reinterpret_cast<const std::byte*>(owner->data());
  tensor.bytes = values.size() * sizeof(float);
  tensor.owner = owner;
  return tensor;
}

RopeTable rope_table(const Case& c) {
  RopeTable table;
  table.dims = c.rope_dims;
  table.interleaved = c.interleaved;
  for (int i = 0; i < c.rope_dims / 2; ++i) {
    table.inv_freq.push_back(
        float(1 / std::pow(10000.0, 2.0 * i / c.rope_dims)));
  }
  return table;
}

// One sequence: the projections of all its positions and what attention makes
// of them.
struct Sequence {
  int64_t length;
  std::vector<float> qkv;  // [length, cols]
};

struct Layer {
  Case c;
  int64_t cols;
  std::vector<float> q_weight, k_weight, sinks;

  explicit Layer(const Case& test_case)
      : c(test_case), cols(int64_t(c.heads + 2 * c.kv_heads) * c.head_dim) {
    int q_size = c.norm == 2 ? c.heads * c.head_dim : c.head_dim;
    int k_size = c.norm == 2 ? c.kv_heads * c.head_dim : c.head_dim;
    q_weight = random_values(size_t(q_size), 5);
    k_weight = random_values(size_t(k_size), 6);
    if (c.sinks) {
      sinks = random_values(size_t(c.heads), 7);
    }
  }
  Sequence sequence(int64_t length, uint32_t seed) const {
    return {length, random_values(size_t(length * cols), seed)};
  }
  float scale() const {
    return 1 / std::sqrt(float(c.head_dim));
  }
};

using Matrix = std::vector<std::vector<double>>;

void reference_norm(
    std::vector<double>& x, int64_t size, const std::vector<float>& weight) {
  for (size_t first = 0; first < x.size(); first += size_t(size)) {
    double square = 0;
    for (int64_t i = 0; i < size; ++i) {
      square += x[first + size_t(i)] * x[first + size_t(i)];
    }
    double factor = 1 / std::sqrt(square / double(size) + 1e-6);
    for (int64_t i = 0; i < size; ++i) {
      x[first + size_t(i)] *= factor * double(weight[size_t(i)]);
    }
  }
}

void reference_rope(std::vector<double>& x, const Case& c, int64_t position) {
  RopeTable table = rope_table(c);
  int half = c.rope_dims / 2;
  for (size_t head = 0; head < x.size(); head += size_t(c.head_dim)) {
    for (int i = 0; i < half; ++i) {
      size_t a = head + size_t(c.interleaved ? 2 * i : i);
      size_t b = head + size_t(c.interleaved ? 2 * i + 1 : i + half);
      // The angle is a product in f32 by definition.
      double angle = double(float(position) * table.inv_freq[size_t(i)]);
      double real = x[a] * std::cos(angle) - x[b] * std::sin(angle);
      double imaginary = x[b] * std::cos(angle) + x[a] * std::sin(angle);
      x[a] = real;
      x[b] = imaginary;
    }
  }
}

Matrix reference(const Layer& layer, const Sequence& sequence) {
  const Case& c = layer.c;
  Matrix q, k, v, out;
  int q_size = c.heads * c.head_dim, k_size = c.kv_heads * c.head_dim;
  for (int64_t position = 0; position < sequence.length; ++position) {
    auto at = sequence.qkv.begin() + position * layer.cols;
    q.emplace_back(at, at + q_size);
    k.emplace_back(at + q_size, at + q_size + k_size);
    v.emplace_back(at + q_size + k_size, at + layer.cols);
    if (c.norm != 0) {
      reference_norm(
          q.back(), c.norm == 1 ? c.head_dim : q_size, layer.q_weight);
      reference_norm(
          k.back(), c.norm == 1 ? c.head_dim : k_size, layer.k_weight);
    }
    if (c.rope_dims != 0) {
      reference_rope(q.back(), c, position);
      reference_rope(k.back(), c, position);
    }
  }
  for (int64_t p = 0; p < sequence.length; ++p) {
    std::vector<double> row(static_cast<size_t>(q_size));
    int64_t first = c.window > 0 ? std::max<int64_t>(0, p - c.window + 1) : 0;
    for (int head = 0; head < c.heads; ++head) {
      int kv = head / (c.heads / c.kv_heads);
      std::vector<double> scores;
      double sum = 0, max = -1e300;
      for (int64_t j = first; j <= p; ++j) {
        double score = 0;
        for (int d = 0; d < c.head_dim; ++d) {
          score += q[size_t(p)][size_t(head * c.head_dim + d)] *
                   k[size_t(j)][size_t(kv * c.head_dim + d)];
        }
        score *= double(layer.scale());
        if (c.softcap > 0) {
          score = c.softcap * std::tanh(score / c.softcap);
        }
        scores.push_back(score);
        max = std::max(max, score);
      }
      if (c.sinks) {
        max = std::max(max, double(layer.sinks[size_t(head)]));
        sum += std::exp(double(layer.sinks[size_t(head)]) - max);
      }
      for (double& score : scores) {
        score = std::exp(score - max);
        sum += score;
      }
      for (int d = 0; d < c.head_dim; ++d) {
        double value = 0;
        for (size_t j = 0; j < scores.size(); ++j) {
          value += scores[j] / sum *
                   v[size_t(first) + j][size_t(kv * c.head_dim + d)];
        }
        row[size_t(head * c.head_dim + d)] = value;
      }
    }
    out.push_back(std::move(row));
  }
  return out;
}

// Runs chunks of sequences as steps and collects the results by position.
class Runner {
 public:
  Runner(const Layer& layer, Isa isa, DType dtype, int threads, int blocks = 64)
      : layer_(layer), context_(options(dtype, threads)) {
    context_.isa = isa;
    const Case& c = layer.c;
    KvCacheSpec spec;
    spec.layers = {{1, 16, 16}, {c.kv_heads, c.head_dim, c.head_dim}};
    spec.dtype = dtype;
    cache_ = make_kv_cache(spec);
    cache_->reserve(blocks);
    if (c.norm != 0) {
      q_norm_ = norm(layer.q_weight, isa);
      k_norm_ = norm(layer.k_weight, isa);
    }
    if (c.rope_dims != 0) {
      rope_ = prepare_rope(rope_table(c));
    }
    args_.num_heads = c.heads;
    args_.num_kv_heads = c.kv_heads;
    args_.head_dim = c.head_dim;
    args_.scale = layer.scale();
    args_.softcap = c.softcap;
    args_.window = c.window;
    args_.rope = rope_.get();
    args_.q_norm = q_norm_.get();
    args_.k_norm = k_norm_.get();
    args_.sinks = layer.sinks;
  }

  struct Chunk {
    const Sequence* sequence;
    const std::vector<int32_t>* blocks;
    int64_t position;
    int rows;
    bool prompt = true;
    std::vector<float>* out;  // [length, heads * head_dim]
  };

  void step(const std::vector<Chunk>& chunks) {
    Step step;
    int rows = 0;
    for (const Chunk& chunk : chunks) {
      Segment segment;
      segment.first_row = rows;
      segment.num_rows = chunk.rows;
      segment.position = chunk.position;
      segment.prompt = chunk.prompt;
      segment.blocks = *chunk.blocks;
      step.segments.push_back(segment);
      rows += chunk.rows;
      step.num_prompt_rows += chunk.prompt ? chunk.rows : 0;
    }
    step.tokens.assign(size_t(rows), 0);
    Tensor qkv = context_.make(rows, layer_.cols);
    float* to = data(qkv);
    for (const Chunk& chunk : chunks) {
      size_t count = size_t(chunk.rows * layer_.cols);
      std::memcpy(
          to,
          chunk.sequence->qkv.data() + chunk.position * layer_.cols,
          count * sizeof(float));
      to += count;
    }
    Tensor out = attention(context_, step, qkv, args_, *cache_, 1);
    int64_t width = out.cols();
    const float* from = data(out);
    for (const Chunk& chunk : chunks) {
      size_t count = size_t(chunk.rows * width);
      std::memcpy(
          chunk.out->data() + chunk.position * width,
          from,
          count * sizeof(float));
      from += count;
    }
  }

  // The prompt in chunks, then one generated row at a time.
  std::vector<float> run(
      const Sequence& sequence,
      int64_t prompt,
      int64_t chunk,
      const std::vector<int32_t>& blocks) {
    std::vector<float> out(
        size_t(sequence.length) * size_t(layer_.c.heads * layer_.c.head_dim));
    for (int64_t p = 0; p < prompt; p += chunk) {
      int rows = int(std::min(chunk, prompt - p));
      step({{&sequence, &blocks, p, rows, true, &out}});
    }
    for (int64_t p = prompt; p < sequence.length; ++p) {
      step({{&sequence, &blocks, p, 1, false, &out}});
    }
    return out;
  }

  KvCache& cache() {
    return *cache_;
  }

 private:
  static BackendOptions options(DType dtype, int threads) {
    BackendOptions options;
    options.activation_dtype = dtype;
    options.threads = threads;
    return options;
  }
  static std::unique_ptr<Norm> norm(const std::vector<float>& weight, Isa isa) {
    NormWeights weights;
    weights.size = int64_t(weight.size());
    weights.eps = 1e-6f;
    weights.weight = weight_of(weight);
    return std::make_unique<CpuNorm>(weights, isa);
  }

  const Layer& layer_;
  Context context_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Norm> q_norm_, k_norm_;
  std::unique_ptr<Rope> rope_;
  AttentionArgs args_;
};

std::vector<int32_t> iota_blocks(int count, int first = 0) {
  std::vector<int32_t> blocks;
  for (int i = 0; i < count; ++i) {
    blocks.push_back(first + i);
  }
  return blocks;
}

double largest_error(
    const std::vector<float>& got,
    const Matrix& wanted,
    int64_t from,
    int64_t to) {
  double error = 0;
  size_t width = wanted[0].size();
  for (size_t p = size_t(from); p < size_t(to); ++p) {
    for (size_t i = 0; i < width; ++i) {
      double difference = std::abs(double(got[p * width + i]) - wanted[p][i]);
      error = std::isnan(difference) ? 1e300 : std::max(error, difference);
    }
  }
  return error;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {.name = "plain"},
      {.name = "one_head_of_16", .heads = 1, .kv_heads = 1, .head_dim = 16},
      {.name = "smollm2", .heads = 9, .kv_heads = 3, .rope_dims = 64},
      {.name = "head_40",
       .heads = 2,
       .kv_heads = 2,
       .head_dim = 40,
       .rope_dims = 40},
      {.name = "head_72",
       .heads = 3,
       .kv_heads = 1,
       .head_dim = 72,
       .rope_dims = 18},
      {.name = "head_80_partial",
       .heads = 4,
       .kv_heads = 4,
       .head_dim = 80,
       .rope_dims = 32},
      {.name = "head_96",
       .heads = 2,
       .kv_heads = 1,
       .head_dim = 96,
       .rope_dims = 96},
      {.name = "head_128_group_7",
       .heads = 14,
       .kv_heads = 2,
       .head_dim = 128,
       .rope_dims = 128},
      {.name = "head_256_softcap",
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 256,
       .softcap = 5,
       .rope_dims = 256},
      {.name = "odd_head_17", .heads = 2, .kv_heads = 1, .head_dim = 17},
      {.name = "group_71",
       .heads = 71,
       .kv_heads = 1,
       .head_dim = 16,
       .rope_dims = 16},
      {.name = "window_7", .window = 7, .rope_dims = 64},
      {.name = "window_100", .heads = 6, .kv_heads = 2, .window = 100},
      {.name = "window_64", .heads = 2, .kv_heads = 2, .window = 64},
      {.name = "window_1", .heads = 2, .kv_heads = 2, .window = 1},
      {.name = "sinks", .heads = 8, .kv_heads = 2, .sinks = true},
      {.name = "sinks_window",
       .heads = 8,
       .kv_heads = 2,
       .window = 70,
       .sinks = true,
       .rope_dims = 64},
      {.name = "interleaved", .rope_dims = 64, .interleaved = true},
      {.name = "interleaved_partial", .rope_dims = 20, .interleaved = true},
      {.name = "head_norm",
       .heads = 4,
       .kv_heads = 2,
       .rope_dims = 64,
       .norm = 1},
      {.name = "whole_norm",
       .heads = 4,
       .kv_heads = 2,
       .rope_dims = 64,
       .norm = 2},
  };
  return all;
}

using Variant = std::tuple<Case, Isa, DType>;

class AttentionTest : public ::testing::TestWithParam<Variant> {
 protected:
  Layer layer_{std::get<0>(GetParam())};
  Isa isa_ = std::get<1>(GetParam());
  DType dtype_ = std::get<2>(GetParam());
};

TEST_P(AttentionTest, MatchesTheLoop) {
  constexpr int64_t kLength = 215, kPrompt = 150;
  Sequence sequence = layer_.sequence(kLength, 1);
  Matrix wanted = reference(layer_, sequence);
  // Blocks in any order.
  std::vector<int32_t> blocks = {3, 0, 7, 2};
  std::vector<float> got =
      Runner(layer_, isa_, dtype_, 2).run(sequence, kPrompt, 70, blocks);
  // Values are normal with deviation 1: f16 keeps 11 bits and bf16 8. Scores of
  // the normed cases reach tens, and a relative error of the keys grows by it.
  double tolerance = dtype_ == DType::f32   ? 3e-5
                     : dtype_ == DType::f16 ? 4e-3
                                            : 3e-2;
  double prompt_tolerance = dtype_ == DType::f32 ? 3e-5 : 4e-2;
  EXPECT_LT(largest_error(got, wanted, 0, kPrompt), prompt_tolerance);
  EXPECT_LT(largest_error(got, wanted, kPrompt, kLength), tolerance);
}

TEST_P(AttentionTest, ChunksAndThreadsChangeNoBit) {
  constexpr int64_t kLength = 203, kPrompt = 170;
  Sequence sequence = layer_.sequence(kLength, 2);
  std::vector<int32_t> blocks = iota_blocks(4);
  std::vector<float> whole =
      Runner(layer_, isa_, dtype_, 1).run(sequence, kPrompt, kPrompt, blocks);
  for (int64_t chunk : {1, 5, 64}) {
    EXPECT_EQ(
        Runner(layer_, isa_, dtype_, 2).run(sequence, kPrompt, chunk, blocks),
        whole)
        << "chunks of " << chunk;
  }
  for (int threads : {2, 3, 5}) {
    EXPECT_EQ(
        Runner(layer_, isa_, dtype_, threads)
            .run(sequence, kPrompt, kPrompt, blocks),
        whole)
        << threads << " threads";
  }
}

TEST_P(AttentionTest, BatchChangesNoBit) {
  // Three sequences: two prompts and one that generates, in one step.
  std::vector<Sequence> sequences = {
      layer_.sequence(90, 3), layer_.sequence(33, 4), layer_.sequence(141, 5)};
  std::vector<std::vector<int32_t>> blocks = {{4, 9}, {1}, {8, 2, 5}};
  std::vector<std::vector<float>> alone, together;
  for (size_t i = 0; i < 3; ++i) {
    int64_t prompt = i == 2 ? 130 : sequences[i].length;
    alone.push_back(Runner(layer_, isa_, dtype_, 2)
                        .run(sequences[i], prompt, prompt, blocks[i]));
    together.emplace_back(alone[i].size());
  }
  Runner runner(layer_, isa_, dtype_, 2);
  runner.step({{&sequences[2], &blocks[2], 0, 130, true, &together[2]}});
  for (int i = 0; i < 11; ++i) {
    int rows = i == 10 ? 0 : 9;
    std::vector<Runner::Chunk> chunks;
    if (rows > 0) {
      chunks.push_back(
          {&sequences[0], &blocks[0], i * 9, rows, true, &together[0]});
      if (i < 3) {
        chunks.push_back(
            {&sequences[1], &blocks[1], i * 11, 11, true, &together[1]});
      }
    }
    chunks.push_back(
        {&sequences[2], &blocks[2], 130 + i, 1, false, &together[2]});
    runner.step(chunks);
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(together[i], alone[i]) << "sequence " << i;
  }
}

TEST_P(AttentionTest, CopiedBlocksHoldTheSame) {
  constexpr int64_t kLength = 140;
  Sequence sequence = layer_.sequence(kLength, 6);
  std::vector<int32_t> blocks = {0, 1, 2};
  size_t width = size_t(layer_.c.heads * layer_.c.head_dim);
  std::vector<float> out(kLength * width), again = out;
  Runner runner(layer_, isa_, dtype_, 2);
  runner.step({{&sequence, &blocks, 0, 139, true, &out}});
  std::vector<int32_t> copy = {10, 11, 12};
  for (size_t i = 0; i < 3; ++i) {
    runner.cache().copy_block(blocks[i], copy[i]);
  }
  runner.cache().reserve(500);  // existing blocks stay
  runner.step({{&sequence, &blocks, 139, 1, false, &out}});
  again = out;
  std::fill_n(again.begin() + 139 * int64_t(width), width, 0.0f);
  runner.step({{&sequence, &copy, 139, 1, false, &again}});
  EXPECT_EQ(again, out);
}

std::string variant_name(const ::testing::TestParamInfo<Variant>& info) {
  std::string name = std::get<0>(info.param).name;
  return cat(
      name,
      "_",
      name_of(std::get<1>(info.param)),
      "_",
      name_of(std::get<2>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(
    All,
    AttentionTest,
    ::testing::Combine(
        ::testing::ValuesIn(cases()),
        ::testing::ValuesIn(supported_isas()),
        ::testing::Values(DType::f32, DType::f16, DType::bf16)),
    variant_name);

TEST(AttentionGenerated, LongContextMatchesTheLoopAndItsThreads) {
  Layer layer({.name = "long", .heads = 6, .kv_heads = 2, .rope_dims = 64});
  constexpr int64_t kLength = 1100;
  Sequence sequence = layer.sequence(kLength, 8);
  std::vector<int32_t> blocks = iota_blocks(18);
  for (Isa isa : supported_isas()) {
    auto one = Runner(layer, isa, DType::f32, 1)
                   .run(sequence, kLength - 3, 512, blocks);
    Matrix wanted = reference(layer, sequence);
    EXPECT_LT(largest_error(one, wanted, 0, kLength), 3e-5) << name_of(isa);
    for (int threads : {2, 4}) {
      EXPECT_EQ(
          Runner(layer, isa, DType::f32, threads)
              .run(sequence, kLength - 3, 300, blocks),
          one)
          << name_of(isa);
    }
  }
}

// A block that a former sequence left full of infinities.
TEST(AttentionGenerated, StaleBlocksDoNotLeak) {
  Layer layer({.name = "stale", .heads = 2, .kv_heads = 1});
  for (Isa isa : supported_isas()) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      Sequence poison = layer.sequence(128, 9);
      for (float& value : poison.qkv) {
        value = INFINITY;
      }
      Sequence sequence = layer.sequence(101, 10);
      std::vector<int32_t> blocks = {0, 1};
      auto clean = Runner(layer, isa, dtype, 2).run(sequence, 80, 7, blocks);
      Runner runner(layer, isa, dtype, 2);
      runner.run(poison, 128, 128, blocks);
      EXPECT_EQ(runner.run(sequence, 80, 7, blocks), clean)
          << name_of(isa) << " " << name_of(dtype);
    }
  }
}

}  // namespace
}  // namespace mlxcel::cpu
