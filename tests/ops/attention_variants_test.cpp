// What few families add to attention, on both backends against plain loops in
// double precision: prompts in chunks, generated rows and both together.
#include "core/error.h"
#include "graph_support.h"
#include "ops/ops.h"
#include "support/models/reference_backend.h"

#include <gmock/gmock.h>

namespace mlxcel::testing {
namespace {

struct Variant {
  std::string name;
  AttentionArgs args;
  RopeTable rope;
  NormWeights q_norm, k_norm, v_norm;  // size 0: none
  bool shared = false;
};

std::ostream& operator<<(std::ostream& out, const Variant& variant) {
  return out << variant.name;
}

NormWeights norm_of(int64_t size, bool weights) {
  NormWeights norm{.size = size, .eps = 1e-3f};
  if (weights) {
    Values values = random_values(size_t(size));
    norm.weight = make_float(DType::f32, {size}, values);
  }
  return norm;
}

Variant base(const std::string& name) {
  Variant v{.name = name};
  v.args = {.num_heads = 6, .num_kv_heads = 2, .head_dim = 20, .scale = 0.2f};
  v.rope.dims = 12;
  for (int i = 0; i < 6; ++i) {
    v.rope.inv_freq.push_back(float(std::pow(50.0, -i / 6.0)));
  }
  return v;
}

std::vector<float> floats(const Values& values) {
  return {values.begin(), values.end()};
}

std::vector<Variant> variants() {
  std::vector<Variant> out;
  auto add = [&](const std::string& name) -> Variant& {
    out.push_back(base(name));
    return out.back();
  };
  add("chunked").args.window = Window(10, true);
  add("chunks_of_blocks").args.window = Window(64, true);
  add("chunk_of_one").args.window = Window(1, true);
  add("query_scaling").args.query_scaling = {0.3f, 8, 0};
  add("query_scaling_from_one").args.query_scaling = {0.4f, 4, 1};
  add("gated").args.gated = true;
  add("clipped").args.clip = 0.8f;
  Variant& clipped = add("clipped_after_norms");
  clipped.args.clip = 0.9f;
  clipped.q_norm = clipped.k_norm = norm_of(20, true);
  clipped.v_norm = norm_of(20, false);
  add("sparse_blocks").args.sparse = {.size = 32, .local = 1, .stride = 4};
  add("sparse_whole_blocks").args.sparse = {
      .size = 64, .local = 1, .stride = 7};
  Variant& cycled = add("heads_in_cycles");
  cycled.args.head_order = HeadOrder::cycled;
  cycled.args.gated = true;
  cycled.args.softcap = 2;
  add("sinks").args.sinks = floats(random_values(6));
  add("alibi").args.alibi_slopes = {0.5f, 0.25f, 0.1f, 0.05f, 0.7f, 0.01f};
  Variant& sloped = add("alibi_with_window");
  sloped.args.alibi_slopes = {0.5f, 0.25f, 0.1f, 0.05f, 0.7f, 0.01f};
  sloped.args.window = Window(9);
  Variant& late = add("norm_after_rope");
  late.args.norm_after_rope = true;
  late.q_norm = norm_of(20, true);
  late.k_norm = norm_of(20, true);
  Variant& wide = add("wide_norm_after_rope");
  wide.args.norm_after_rope = true;
  wide.q_norm = norm_of(120, true);
  wide.k_norm = norm_of(40, true);
  Variant& bare = add("weightless_norms");
  bare.q_norm = bare.k_norm = bare.v_norm = norm_of(20, false);
  Variant& keys = add("keys_as_values");
  keys.args.key_values = KeyValues::from_keys;
  keys.k_norm = norm_of(20, true);
  keys.v_norm = norm_of(20, false);
  Variant& backwards = add("turning_backwards");
  for (float& frequency : backwards.rope.inv_freq) {
    frequency = -frequency;
  }
  Variant& proportional = add("frequencies_of_zero");
  proportional.rope.dims = 20;
  proportional.rope.inv_freq.resize(10, 0.0f);
  Variant& shared = add("shared_projection");
  shared.shared = true;
  shared.q_norm = norm_of(20, true);
  shared.k_norm = norm_of(20, true);
  Variant& all = add("gated_chunks_of_shared_keys");
  all.shared = true;
  all.args.gated = true;
  all.args.window = Window(12, true);
  all.args.softcap = 3;
  all.args.sinks = floats(random_values(6));
  return out;
}

struct Part {
  int sequence, rows;
  bool prompt;
};

// One layer on one backend. Layer 0 is the variant; layer 1 reads its cache.
class Layer {
 public:
  Layer(std::unique_ptr<Backend> backend, const Variant& variant)
      : backend_(std::move(backend)), args_(variant.args) {
    rope_ = backend_->prepare_rope(variant.rope);
    args_.rope = rope_.get();
    auto prepare = [&](const NormWeights& weights) {
      return weights.size > 0 ? backend_->prepare_norm(weights) : nullptr;
    };
    q_norm_ = prepare(variant.q_norm);
    k_norm_ = prepare(variant.k_norm);
    v_norm_ = prepare(variant.v_norm);
    args_.q_norm = q_norm_.get();
    args_.k_norm = k_norm_.get();
    args_.v_norm = v_norm_.get();
    KvCacheSpec spec;
    spec.dtype = DType::f32;
    int heads = args_.num_kv_heads, dim = args_.head_dim;
    spec.layers = {{heads, dim, dim}, {}};
    cache_ = backend_->make_kv_cache(spec);
    cache_->reserve(8);
  }

  std::vector<float> run(
      const Step& step,
      const Values& qkv,
      int64_t cols,
      const Values& source,
      int64_t source_cols) {
    Tensor x = tensor_of(*backend_, qkv, cols);
    Tensor shared;
    if (!source.empty()) {
      shared = tensor_of(*backend_, source, source_cols);
    }
    Tensor y = ops::attention(
        *backend_,
        step,
        x,
        args_,
        *cache_,
        0,
        source.empty() ? nullptr : &shared);
    return read_back(*backend_, y);
  }

  // Queries alone against the keys that run() left in the cache.
  std::vector<float> read_again(
      const Step& step, const Values& q, int64_t cols) {
    AttentionArgs args = args_;
    args.key_values = KeyValues::cached;
    args.v_norm = nullptr;
    Tensor x = tensor_of(*backend_, q, cols);
    return read_back(
        *backend_, ops::attention(*backend_, step, x, args, *cache_, 0));
  }

 private:
  std::unique_ptr<Backend> backend_;
  AttentionArgs args_;
  std::unique_ptr<Rope> rope_;
  std::unique_ptr<Norm> q_norm_, k_norm_, v_norm_;
  std::unique_ptr<KvCache> cache_;
};

class AttentionVariants : public ::testing::TestWithParam<Variant> {};

TEST_P(AttentionVariants, MatchPlainLoops) {
  const Variant& variant = GetParam();
  const AttentionArgs& args = variant.args;
  BackendOptions options;
  options.activation_dtype = DType::f32;
  Layer expected(make_reference_backend(), variant);
  Layer cpu(make_cpu_backend(options), variant);
  Layer graph(make_graph_backend(options), variant);

  int q_heads = args.num_heads * (args.gated ? 2 : 1);
  int own_keys = variant.shared                            ? 0
                 : args.key_values == KeyValues::from_keys ? 1
                                                           : 2;
  int64_t cols = int64_t(q_heads + own_keys * args.num_kv_heads) * 20;
  int64_t source_cols = int64_t(args.num_heads + 2 * args.num_kv_heads) * 20;

  std::vector<std::vector<int32_t>> blocks = {{6, 1, 4}, {2, 3}, {0, 5}};
  std::vector<int64_t> lengths(3, 0);
  for (const std::vector<Part>& parts : std::vector<std::vector<Part>>{
           {{0, 20, true}, {1, 67, true}},
           {{0, 50, true}, {1, 1, false}},
           {{2, 3, true}, {0, 1, false}, {1, 1, false}},
           {{0, 1, false}, {1, 1, false}, {2, 1, false}},
           {{0, 60, true}, {2, 5, true}},
           {{1, 1, false}, {0, 1, false}}}) {
    Step step;
    for (const Part& part : parts) {
      size_t s = size_t(part.sequence);
      step.segments.push_back(
          {.first_row = step.num_rows(),
           .num_rows = part.rows,
           .position = lengths[s],
           .prompt = part.prompt,
           .rope_length = lengths[s] + part.rows,
           .blocks = blocks[s]});
      lengths[s] += part.rows;
      step.tokens.resize(step.tokens.size() + size_t(part.rows));
      step.num_prompt_rows += part.prompt ? part.rows : 0;
    }
    size_t rows = size_t(step.num_rows());
    Values qkv = random_values(rows * size_t(cols));
    Values source;
    if (variant.shared) {
      source = random_values(rows * size_t(source_cols));
    }
    std::vector<float> want =
        expected.run(step, qkv, cols, source, source_cols);
    Values exact(want.begin(), want.end());
    expect_near(cpu.run(step, qkv, cols, source, source_cols), exact, 2e-5);
    expect_near(graph.run(step, qkv, cols, source, source_cols), exact, 2e-5);

    int64_t q_cols = int64_t(q_heads) * 20;
    Values again = random_values(rows * size_t(q_cols));
    want = expected.read_again(step, again, q_cols);
    exact.assign(want.begin(), want.end());
    expect_near(cpu.read_again(step, again, q_cols), exact, 2e-5);
    expect_near(graph.read_again(step, again, q_cols), exact, 2e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    AttentionVariants,
    ::testing::ValuesIn(variants()),
    [](const auto& info) { return info.param.name; });

std::string refusal(const AttentionArgs& args, int64_t cols, bool shared) {
  auto backend = make_reference_backend();
  KvCacheSpec spec;
  spec.layers = {{2, 20, 20}};
  auto cache = backend->make_kv_cache(spec);
  cache->reserve(1);
  std::vector<int32_t> blocks = {0};
  Step step;
  step.tokens = {0};
  step.num_prompt_rows = 1;
  step.segments = {{.num_rows = 1, .rope_length = 1, .blocks = blocks}};
  Tensor x = tensor_of(*backend, Values(size_t(cols)), cols);
  try {
    ops::attention(*backend, step, x, args, *cache, 0, shared ? &x : nullptr);
  } catch (const ShapeError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(AttentionArguments, NameWhatDoesNotFit) {
  using ::testing::HasSubstr;
  AttentionArgs args = base("").args;
  EXPECT_EQ(refusal(args, 200, false), "accepted");
  EXPECT_THAT(refusal(args, 180, false), HasSubstr("[1, 200]"));
  AttentionArgs gated = args;
  gated.gated = true;
  EXPECT_THAT(refusal(gated, 200, false), HasSubstr("[1, 320]"));
  AttentionArgs keys = args;
  keys.key_values = KeyValues::from_keys;
  EXPECT_THAT(refusal(keys, 200, false), HasSubstr("[1, 160]"));
  EXPECT_THAT(refusal(args, 120, true), HasSubstr("shared projection"));
  AttentionArgs sloped = args;
  sloped.alibi_slopes = {1, 2};
  EXPECT_THAT(refusal(sloped, 200, false), HasSubstr("slopes"));
  sloped.alibi_slopes.resize(6);
  EXPECT_EQ(refusal(sloped, 200, false), "accepted");
  sloped.softcap = 2;
  EXPECT_THAT(refusal(sloped, 200, false), HasSubstr("cannot be capped"));
  sloped.softcap = 0;
  sloped.head_order = HeadOrder::cycled;
  EXPECT_THAT(refusal(sloped, 200, false), HasSubstr("heads in cycles"));
  AttentionArgs sparse = args;
  sparse.sparse = {.size = 48, .local = 1, .stride = 2};
  EXPECT_THAT(refusal(sparse, 200, false), HasSubstr("blocks of 48"));
  sparse.sparse.size = 32;
  EXPECT_EQ(refusal(sparse, 200, false), "accepted");
  sparse.softcap = 2;
  EXPECT_THAT(refusal(sparse, 200, false), HasSubstr("cannot be capped"));
}

}  // namespace
}  // namespace mlxcel::testing
