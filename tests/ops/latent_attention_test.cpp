// Latent attention of both backends against the reference's full keys and
// values in double precision, and the same bits of the CPU backend however rows
// are cut, batched and threaded.
#include "core/cpu_features.h"
#include "core/error.h"
#include "graph_support.h"
#include "ops/ops.h"
#include "support/models/reference_backend.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace mlxcel::testing {
namespace {

struct Case {
  std::string name;
  int heads = 4, plain = 12, rope = 8, value = 20, latent = 16;
  bool interleaved = true, turns = true, has_norm = true;
  float latent_scale = 1;
  int bits = 0;  // 0: float heads
  DType cache_dtype = DType::f32;
  double tolerance = 2e-5;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

// What the layer is made of, the same for all backends: tables of queries and
// latent rows stand for the projections of `length` tokens of two sequences.
struct Layer {
  static constexpr int kTokens = 320;

  explicit Layer(const Case& test_case) : c(test_case) {
    q = plain_matrix(kTokens, c.heads * (c.plain + c.rope), DType::f32).weight;
    kv = plain_matrix(kTokens, c.latent + c.rope, DType::f32).weight;
    Values weight = random_values(size_t(c.latent));
    norm.size = c.latent;
    norm.eps = 1e-3f;
    norm.weight = make_float(DType::f32, {c.latent}, weight);
    for (int h = 0; h < c.heads; ++h) {
      keys.heads.push_back(head(c.latent, c.plain));
      values.heads.push_back(head(c.value, c.latent));
    }
    rope.dims = c.rope;
    rope.interleaved = c.interleaved;
    for (int i = 0; i < c.rope / 2; ++i) {
      rope.inv_freq.push_back(float(std::pow(700.0, -2.0 * i / c.rope)));
    }
  }

  LinearWeights head(int64_t out, int64_t in) const {
    LinearWeights weights;
    weights.name = "head";
    weights.parts.push_back(
        c.bits > 0 ? affine_matrix(out, in, c.bits, 32, DType::f32).weight
                   : plain_matrix(out, in, DType::f32).weight);
    LowRankTerm term{.rank = 3, .scale = 0.5f};
    term.rows = out;
    Values a = random_values(size_t(in * 3), 1 / std::sqrt(double(in)));
    Values b = random_values(size_t(out * 3), 0.5);
    term.a = make_float(DType::f32, {in, 3}, a);
    term.b = make_float(DType::f32, {3, out}, b);
    weights.terms.push_back(term);
    return weights;
  }

  Case c;
  MatrixWeight q, kv;
  NormWeights norm;
  HeadWeights keys, values;
  RopeTable rope;
};

// Rows of the first sequence take tokens from 0, of the second from 160.
struct Chunk {
  int sequence = 0;
  int64_t position = 0;
  int rows = 1;
  bool prompt = true;
  float adapter_scale = 0;
};

class Runner {
 public:
  Runner(const Layer& layer, std::unique_ptr<Backend> backend)
      : c_(layer.c), backend_(std::move(backend)) {
    q_ = backend_->prepare_embedding({.table = layer.q});
    kv_ = backend_->prepare_embedding({.table = layer.kv});
    norm_ = backend_->prepare_norm(layer.norm);
    keys_ = backend_->prepare_heads(layer.keys);
    values_ = backend_->prepare_heads(layer.values);
    rope_ = backend_->prepare_rope(layer.rope);
    KvCacheSpec spec;
    spec.layers = {{2, 16, 16}, {1, c_.rope + c_.latent, 0}};
    spec.dtype = c_.cache_dtype;
    cache_ = backend_->make_kv_cache(spec);
    cache_->reserve(8);
    args_ = {
        .key_up = keys_.get(),
        .value_up = values_.get(),
        .latent_norm = c_.has_norm ? norm_.get() : nullptr,
        .rope = c_.turns ? rope_.get() : nullptr,
        .rope_dim = c_.rope,
        .scale = 0.7f,
        .latent_scale = c_.latent_scale};
  }

  // Appends the rows' results to those of their sequences.
  void run(const std::vector<Chunk>& chunks) {
    Step step;
    std::vector<std::vector<float>> scales;
    for (const Chunk& chunk : chunks) {
      scales.push_back({chunk.adapter_scale});
    }
    for (size_t i = 0; i < chunks.size(); ++i) {
      const Chunk& chunk = chunks[i];
      Segment segment;
      segment.first_row = step.num_rows();
      segment.num_rows = chunk.rows;
      segment.position = chunk.position;
      segment.prompt = chunk.prompt;
      segment.blocks = blocks_[size_t(chunk.sequence)];
      segment.adapter_scales = scales[i];
      step.segments.push_back(segment);
      step.num_prompt_rows += chunk.prompt ? chunk.rows : 0;
      for (int row = 0; row < chunk.rows; ++row) {
        step.tokens.push_back(
            int32_t(chunk.sequence * 160 + chunk.position + row));
      }
    }
    Tensor out = ops::latent_attention(
        *backend_,
        step,
        backend_->embed(step, *q_, 1),
        backend_->embed(step, *kv_, 1),
        args_,
        *cache_,
        1);
    std::vector<float> rows(size_t(out.rows() * out.cols()));
    backend_->read(out, rows.data());
    auto from = rows.begin();
    for (const Chunk& chunk : chunks) {
      auto count = chunk.rows * out.cols();
      std::vector<float>& to = results[size_t(chunk.sequence)];
      to.insert(to.end(), from, from + count);
      from += count;
    }
  }

  // `length` rows of a sequence, `prompt` of them in chunks, the others one at
  // a time.
  void run_alone(
      int sequence,
      int64_t length,
      int64_t prompt,
      int64_t chunk,
      float scale) {
    for (int64_t p = 0; p < prompt; p += chunk) {
      run({{sequence, p, int(std::min(chunk, prompt - p)), true, scale}});
    }
    for (int64_t p = prompt; p < length; ++p) {
      run({{sequence, p, 1, false, scale}});
    }
  }

  Backend& backend() {
    return *backend_;
  }
  KvCache& cache() {
    return *cache_;
  }
  LatentAttentionArgs& args() {
    return args_;
  }

  std::vector<float> results[2];

 private:
  Case c_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Embedding> q_, kv_;
  std::unique_ptr<Norm> norm_;
  std::unique_ptr<HeadLinear> keys_, values_;
  std::unique_ptr<Rope> rope_;
  std::unique_ptr<KvCache> cache_;
  LatentAttentionArgs args_;
  // Out of order, as a busy cache gives them.
  std::vector<int32_t> blocks_[2] = {{5, 0, 3}, {1, 7, 2}};
};

std::unique_ptr<Backend> make_backend(
    const std::string& target, DType dtype, int threads = 2) {
  BackendOptions options{.threads = threads, .activation_dtype = dtype};
  if (target == "graph") {
    return make_graph_backend(options);
  }
  setenv("MLXCEL_CPU_ISA", target.c_str(), 1);
  auto backend = make_cpu_backend(options);
  unsetenv("MLXCEL_CPU_ISA");
  return backend;
}

std::vector<std::string> cpu_targets() {
  std::vector<std::string> out;
  for (Isa isa : supported_isas()) {
    out.emplace_back(name_of(isa));
  }
  return out;
}

double largest_difference(
    const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double out = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    double difference = std::abs(double(a[i]) - double(b[i]));
    out = std::isnan(difference) ? 1e300 : std::max(out, difference);
  }
  return out;
}

class LatentAttentionCase : public ::testing::TestWithParam<Case> {};

TEST_P(LatentAttentionCase, MatchesFullKeysAndValues) {
  Layer layer(GetParam());
  Runner wanted(layer, make_reference_backend());
  wanted.run_alone(0, 150, 90, 90, 0);
  wanted.run_alone(1, 40, 33, 33, 1.5f);
  std::vector<std::string> targets = cpu_targets();
  targets.emplace_back("graph");
  for (const std::string& target : targets) {
    SCOPED_TRACE(target);
    Runner runner(layer, make_backend(target, GetParam().cache_dtype));
    runner.run_alone(0, 150, 90, 37, 0);
    runner.run_alone(1, 40, 33, 8, 1.5f);
    for (int s = 0; s < 2; ++s) {
      EXPECT_LT(
          largest_difference(runner.results[s], wanted.results[s]),
          GetParam().tolerance)
          << "sequence " << s;
    }
  }
}

TEST_P(LatentAttentionCase, GivesTheSameBitsHoweverRowsAreCutAndBatched) {
  Layer layer(GetParam());
  for (const std::string& target : cpu_targets()) {
    SCOPED_TRACE(target);
    Runner alone(layer, make_backend(target, GetParam().cache_dtype));
    alone.run_alone(0, 140, 70, 70, 0);
    alone.run_alone(1, 80, 10, 10, 0.5f);
    // One with four threads; prompts in small pieces beside generated rows.
    Runner mixed(layer, make_backend(target, GetParam().cache_dtype, 4));
    mixed.run({{1, 0, 10, true, 0.5f}});
    for (int i = 0; i < 70; ++i) {
      mixed.run({{0, i, 1, true, 0}, {1, 10 + i, 1, false, 0.5f}});
    }
    for (int i = 70; i < 140; ++i) {
      mixed.run({{0, i, 1, false, 0}});
    }
    for (int s = 0; s < 2; ++s) {
      EXPECT_EQ(largest_difference(mixed.results[s], alone.results[s]), 0)
          << "sequence " << s;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms,
    LatentAttentionCase,
    ::testing::Values(
        Case{.name = "small"},
        Case{.name = "half_pairs", .interleaved = false, .latent_scale = 1.7f},
        Case{
            .name = "still",
            .heads = 3,
            .plain = 7,
            .rope = 2,
            .value = 5,
            .latent = 33,
            .turns = false,
            .has_norm = false},
        Case{
            .name = "published_widths",
            .heads = 6,
            .plain = 128,
            .rope = 64,
            .value = 128,
            .latent = 512,
            .tolerance = 1e-4},
        Case{
            .name = "many_heads",
            .heads = 70,
            .latent = 32,
            .cache_dtype = DType::f16,
            .tolerance = 3e-2},
        Case{
            .name = "packed",
            .plain = 32,
            .value = 32,
            .latent = 64,
            .bits = 4},
        Case{
            .name = "odd_f16",
            .heads = 5,
            .plain = 9,
            .rope = 6,
            .value = 7,
            .latent = 35,
            .cache_dtype = DType::f16,
            .tolerance = 3e-2},
        Case{
            .name = "bf16",
            .plain = 64,
            .rope = 16,
            .value = 24,
            .latent = 96,
            .cache_dtype = DType::bf16,
            .tolerance = 8e-2}),
    [](const auto& test) { return test.param.name; });

// A block's unused positions may hold anything a former sequence left there.
TEST(LatentAttention, IgnoresWhatAFormerSequenceLeft) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Layer layer({.name = "reused", .cache_dtype = dtype});
    for (const std::string& target : cpu_targets()) {
      Runner fresh(layer, make_backend(target, dtype));
      fresh.run_alone(0, 9, 5, 5, 0);
      Runner reused(layer, make_backend(target, dtype));
      size_t bytes = reused.cache().block_bytes();
      std::vector<std::byte> infinities(bytes);
      for (size_t i = 0; i < bytes; i += 4) {
        uint32_t bits = dtype == DType::f32   ? 0x7f800000u
                        : dtype == DType::f16 ? 0x7c007c00u
                                              : 0x7f807f80u;
        std::memcpy(infinities.data() + i, &bits, 4);
      }
      reused.cache().load_block(5, infinities.data());
      reused.run_alone(0, 9, 5, 5, 0);
      EXPECT_EQ(largest_difference(reused.results[0], fresh.results[0]), 0)
          << target;
    }
  }
}

TEST(LatentAttention, RefusesShapesThatDoNotFit) {
  Layer layer({.name = "refused"});
  Runner runner(layer, make_cpu_backend({}));
  runner.args().rope_dim = 6;
  try {
    runner.run({{0, 0, 2}});
    FAIL() << "a narrower rotation was taken";
  } catch (const ShapeError& error) {
    EXPECT_THAT(
        error.what(),
        ::testing::HasSubstr("the projections do not fit the heads"));
  }
  runner.args().rope_dim = 8;
  std::swap(runner.args().key_up, runner.args().value_up);
  EXPECT_THROW(runner.run({{0, 0, 2}}), ShapeError);
}

}  // namespace
}  // namespace mlxcel::testing
