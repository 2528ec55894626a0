// Adapters and surgery on every family that can be built: random changes of
// each matrix, against a checkpoint whose weights were changed by hand.
#include "core/error.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "loading/config_file.h"
#include "loading/pipeline.h"
#include "models/registry.h"
#include "support/fixtures.h"
#include "support/models/sequences.h"
#include "support/models/text_case.h"
#include "support/temporary_folder.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <span>

namespace mlxcel {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::Logits;
using testing::TemporaryFolder;

constexpr int64_t kRank = 3;
constexpr float kFactor = 0.75f;

std::vector<float> random_floats(int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, 0.1f);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) {
    value = normal(engine);
  }
  return out;
}

WeightTensor tensor_of(const std::vector<float>& values, Shape shape) {
  std::byte* data = nullptr;
  WeightTensor out = make_weight(DType::f32, std::move(shape), &data);
  std::memcpy(data, values.data(), values.size() * sizeof(float));
  return out;
}

std::vector<float> floats_of(const WeightTensor& tensor) {
  std::vector<float> out(tensor.bytes / size_of(tensor.dtype));
  read_as_f32(tensor, out.data());
  return out;
}

// A random low-rank change of one matrix, in the mlx form: a [in, rank],
// b [rank, out]; of an embedding a [vocabulary, rank], b [rank, hidden].
struct Pair {
  std::string stem;
  std::string kind;  // of the first role that the matrix holds
  int64_t out = 0, in = 0;
  bool input_first = false;  // stored [in, out]
  std::vector<float> a = {}, b = {};

  bool on_embedding() const {
    return kind == "embedding";
  }
  bool on_expert() const {
    return kind.starts_with("moe.experts.");
  }
  void add_to(WeightMap& tensors) const {
    int64_t left = on_embedding() ? out : in;
    int64_t right = on_embedding() ? in : out;
    tensors.set(stem + ".lora_a", tensor_of(a, {left, kRank}));
    tensors.set(stem + ".lora_b", tensor_of(b, {kRank, right}));
  }
  // w[o, i] += factor * sum over r of a[i, r] b[r, o], or, in an embedding, of
  // a[o, r] b[r, i]; in f64.
  WeightTensor changed(const WeightTensor& weight) const {
    std::vector<float> w = floats_of(weight);
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        double sum = 0;
        for (int64_t r = 0; r < kRank; ++r) {
          sum += on_embedding() ? double(a[size_t(o * kRank + r)]) *
                                      double(b[size_t(r * in + i)])
                                : double(a[size_t(i * kRank + r)]) *
                                      double(b[size_t(r * out + o)]);
        }
        float& value = w[size_t(input_first ? i * out + o : o * in + i)];
        value = float(double(value) + double(kFactor) * sum);
      }
    }
    return tensor_of(w, weight.shape);
  }
};

class EveryFamily : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    testing::TextCase test_case = testing::load_text_case("text", GetParam());
    tokens_.assign(
        test_case.input_ids.begin(), test_case.input_ids.begin() + 11);
    config_ = read_config(test_case.model);
    family_ = find_by_model_type(test_case.model_type);
    ASSERT_NE(family_, nullptr);
    names_.emplace(family_->names, decoder_spec(*family_, config_));
    SafetensorsFile file =
        read_safetensors(test_case.model / "model.safetensors");
    metadata_ = file.metadata;
    // In f32, so that live and fused differ by the order of sums alone.
    for (const auto& [key, tensor] : file.tensors) {
      bool narrow = tensor.dtype == DType::bf16 || tensor.dtype == DType::f16;
      weights_.set(
          key, narrow ? tensor_of(floats_of(tensor), tensor.shape) : tensor);
    }
    write(base_, weights_);
    find_matrices();
    original_ = run(base_);
  }

  void write(const TemporaryFolder& folder, const WeightMap& weights) const {
    folder.write("config.json", config_.json().dump());
    write_safetensors(folder.path() / "model.safetensors", weights, metadata_);
  }

  bool tied() const {
    return names_->spec().head == HeadKind::tied;
  }

  // The float matrices of the checkpoint that hold roles of the model, under
  // the checkpoint's own names.
  void find_matrices() {
    unsigned seed = 1;
    for (const auto& [key, tensor] : weights_) {
      auto [stem, part] = split_key(key);
      std::vector<RolePart> parts = names_->parts_of(stem);
      if (part != "weight" || parts.empty() || !is_float(tensor.dtype) ||
          names_->cols(parts.front().role) == 0) {
        continue;
      }
      if (tensor.ndim() == 3) {
        stacks_.emplace_back(stem);
      }
      if (tensor.ndim() != 2) {
        continue;
      }
      Pair pair{
          .stem = std::string(stem),
          .kind = parts.front().role.kind,
          .in = names_->cols(parts.front().role)};
      for (const RolePart& rows : parts) {
        pair.out += rows.count;
      }
      pair.input_first = config_.layout() == WeightsLayout::published &&
                         names_->is_input_first(stem);
      pair.a = random_floats(
          (pair.on_embedding() ? pair.out : pair.in) * kRank, seed++);
      pair.b = random_floats(
          (pair.on_embedding() ? pair.in : pair.out) * kRank, seed++);
      matrices_.push_back(std::move(pair));
    }
    ASSERT_FALSE(matrices_.empty());
  }

  static bool is_other_table(const Pair& pair) {
    return pair.kind == "positions" || pair.kind == "per_layer.table";
  }

  bool is_normalized_head(const Pair& pair) const {
    return pair.kind == "head" &&
           names_->spec().extras.head.rows != HeadRows::as_stored;
  }

  // Whether an adapter may have the pair.
  bool takes(const Pair& pair) const {
    if (is_other_table(pair) || is_normalized_head(pair) ||
        (tied() && pair.kind == "head")) {
      return false;
    }
    return !pair.on_embedding() || !tied() ||
           family_->embed_pairs == EmbedPairs::when_tied;
  }

  static void write_adapter(
      const TemporaryFolder& folder, const std::vector<Pair>& pairs) {
    WeightMap tensors;
    for (const Pair& pair : pairs) {
      pair.add_to(tensors);
    }
    write_safetensors(folder.path() / "adapters.safetensors", tensors);
    nlohmann::json config = {
        {"fine_tune_type", "lora"},
        {"lora_parameters", {{"rank", kRank}, {"scale", kFactor}}}};
    folder.write("adapter_config.json", config.dump());
  }

  Logits run(
      const TemporaryFolder& model,
      std::optional<AdapterRequest> adapter = {},
      std::optional<fs::path> recipe = {}) const {
    LoadOptions options;
    options.model = model.path();
    options.backend = BackendKind::cpu;
    options.threads = 2;
    options.dtype = DType::f32;
    options.surgery = std::move(recipe);
    if (adapter) {
      options.adapters.push_back(*adapter);
    }
    LoadedModel loaded = load_model(options);
    testing::SequenceRunner runner(*loaded.backend, *loaded.model);
    int sequence = runner.add({1.0f});
    std::span<const int32_t> tokens(tokens_);
    Logits out = runner.prefill(sequence, tokens.first(8));
    for (int32_t token : tokens.subspan(8)) {
      out.push_back(runner.decode(sequence, token));
    }
    return out;
  }

  Logits with_adapter(const std::vector<Pair>& pairs, bool fuse) const {
    TemporaryFolder folder;
    write_adapter(folder, pairs);
    return run(base_, AdapterRequest{.folder = folder.path(), .fuse = fuse});
  }

  // "" where the adapter was applied.
  std::string refusal(const std::vector<Pair>& pairs, bool fuse) const {
    try {
      with_adapter(pairs, fuse);
    } catch (const AdapterError& error) {
      return error.what();
    }
    return "";
  }

  Logits by_hand(const std::vector<Pair>& pairs) const {
    WeightMap changed = weights_;
    for (const Pair& pair : pairs) {
      std::string key = pair.stem + ".weight";
      changed.set(key, pair.changed(weights_.at(key)));
    }
    TemporaryFolder folder;
    write(folder, changed);
    return run(folder);
  }

  // Sums in another order, through a few layers: some ulp of the largest logit.
  static void expect_close(const Logits& actual, const Logits& expected) {
    EXPECT_LE(
        testing::max_difference(actual, expected), 1e-4 * largest(expected));
  }
  // By far more than that.
  void expect_changed(const Logits& actual) const {
    EXPECT_GT(
        testing::max_difference(actual, original_), 1e-2 * largest(original_));
  }
  static double largest(const Logits& logits) {
    double out = 0;
    for (const std::vector<float>& row : logits) {
      for (float value : row) {
        if (std::isfinite(value)) {  // masked tokens have none
          out = std::max(out, std::abs(double(value)));
        }
      }
    }
    return out;
  }

  Config config_;
  const Family* family_ = nullptr;
  std::optional<NameMap> names_;
  std::map<std::string, std::string> metadata_;
  WeightMap weights_;
  std::vector<int32_t> tokens_;
  TemporaryFolder base_;
  std::vector<Pair> matrices_;
  std::vector<std::string> stacks_;  // stems of tensors of three dimensions
  Logits original_;
};

TEST_P(EveryFamily, ALiveAdapterEqualsAFusedOneAndWeightsChangedByHand) {
  std::vector<Pair> all, live;
  for (const Pair& pair : matrices_) {
    if (!takes(pair)) {
      continue;
    }
    all.push_back(pair);
    if (pair.on_expert()) {
      continue;
    }
    live.push_back(pair);
  }
  if (family_->adapters == AdapterSupport::refused) {
    for (bool fuse : {true, false}) {
      EXPECT_THAT(refusal(all, fuse), HasSubstr(family_->adapter_refusal));
    }
    return;
  }
  Logits wanted = by_hand(all);
  expect_changed(wanted);
  expect_close(with_adapter(all, true), wanted);

  if (live.size() < all.size()) {
    EXPECT_THAT(
        refusal(all, false), HasSubstr("changes an expert of a mixture"));
  }
  // A part of another kind may read a matrix otherwise than as a linear.
  std::erase_if(live, [&](const Pair& pair) {
    const BlockSpec* block = nullptr;
    for (const RolePart& part : names_->parts_of(pair.stem)) {
      if (part.role.layer >= 0) {
        block = &names_->spec().blocks[size_t(part.role.layer)];
      }
    }
    if (block == nullptr || (!block->mixer && !block->feed_forward)) {
      return false;
    }
    std::string message = refusal({pair}, false);
    EXPECT_THAT(message, AnyOf("", HasSubstr("fuse the adapter")));
    return !message.empty();
  });
  if (!live.empty()) {
    expect_close(with_adapter(live, false), by_hand(live));
  }
}

TEST_P(EveryFamily, APairThatTheFamilyDoesNotTakeIsRefused) {
  if (family_->adapters == AdapterSupport::refused) {
    return;  // all are
  }
  for (const Pair& pair : matrices_) {
    if (is_other_table(pair)) {
      EXPECT_THAT(
          refusal({pair}, true),
          HasSubstr("of the tables that are looked up only embed_tokens"));
    }
    if (is_normalized_head(pair)) {
      for (bool fuse : {true, false}) {
        EXPECT_THAT(refusal({pair}, fuse), HasSubstr("divides this head's"));
      }
    }
    if (tied() && pair.on_embedding() && !takes(pair)) {
      EXPECT_THAT(
          refusal({pair}, true),
          HasSubstr(cat(
              family_->name, " with a tied head takes no embed_tokens pair")));
    }
  }
  for (const std::string& stem : stacks_) {
    Pair pair{.stem = stem, .kind = "stack", .out = 4, .in = 4};
    pair.a = random_floats(4 * kRank, 1);
    pair.b = random_floats(4 * kRank, 2);
    EXPECT_NE(refusal({pair}, true), "") << stem;
    EXPECT_NE(refusal({pair}, false), "") << stem;
  }
}

TEST_P(EveryFamily, SurgeryScalesWhatItsPatternsName) {
  WeightMap changed = weights_;
  std::string recipe = "version: 1\noperations:\n";
  int number = 0;
  for (const auto& [key, tensor] : weights_) {
    bool matrix = tensor.ndim() == 2 || tensor.ndim() == 3;
    if (!matrix || !is_float(tensor.dtype) || !key.ends_with(".weight") ||
        is_dropped(*family_, key, names_->spec().blocks.size())) {
      continue;
    }
    float factor = 0.75f + 0.125f * float(number++ % 5);
    auto scale = [&](std::string_view pattern) {
      recipe += cat(
          "- {op: scale, pattern: '", pattern, "', factor: ", factor, "}\n");
    };
    scale(key);
    // Surgery sees a tied head as a tensor of its own.
    std::vector<RolePart> parts = names_->parts_of(split_key(key).first);
    std::string head = names_->stems_of("head").front().stem + ".weight";
    if (tied() && !parts.empty() && parts[0].role.kind == "embedding" &&
        !weights_.contains(head)) {
      scale(head);
    }
    std::vector<float> values = floats_of(tensor);
    for (float& value : values) {
      value *= factor;
    }
    changed.set(key, tensor_of(values, tensor.shape));
  }
  TemporaryFolder file, folder;
  write(folder, changed);
  Logits wanted = run(folder);
  expect_changed(wanted);
  expect_close(run(base_, {}, file.write("surgery.yaml", recipe)), wanted);
}

// The smallest case of each family that can be built.
std::vector<std::string> one_case_a_family() {
  std::map<const Family*, std::pair<uintmax_t, std::string>> smallest;
  for (const std::string& name : testing::runnable_cases("text")) {
    testing::TextCase text = testing::load_text_case("text", name);
    uintmax_t bytes = fs::file_size(text.model / "model.safetensors");
    auto [at, added] =
        smallest.try_emplace(find_by_model_type(text.model_type), bytes, name);
    if (!added && bytes < at->second.first) {
      at->second = {bytes, name};
    }
  }
  std::vector<std::string> out;
  for (auto& [family, found] : smallest) {
    out.push_back(std::move(found.second));
  }
  std::sort(out.begin(), out.end());
  return out;
}

INSTANTIATE_TEST_SUITE_P(
    Text,
    EveryFamily,
    ::testing::ValuesIn(one_case_a_family()),
    [](const auto& test) {
      std::string name = test.param;
      for (char& c : name) {
        c = c == '-' ? '_' : c;
      }
      return name;
    });

}  // namespace
}  // namespace mlxcel
