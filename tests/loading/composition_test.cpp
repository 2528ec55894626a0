// Surgery, a fused adapter and a live one together, against a checkpoint whose
// weights were changed by hand.
#include "io/json.h"
#include "io/safetensors.h"
#include "loading/pipeline.h"
#include "support/fixtures.h"
#include "support/models/sequences.h"
#include "support/models/text_case.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace mlxcel {
namespace {

namespace fs = std::filesystem;
using testing::Logits;
using testing::TemporaryFolder;

constexpr const char* kQuery = "model.layers.0.self_attn.q_proj";
constexpr const char* kDown = "model.layers.1.mlp.down_proj";
constexpr int64_t kRank = 3;
constexpr float kConfigScale = 1.5f;

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;

  static Matrix random(int64_t rows, int64_t cols, unsigned seed) {
    Matrix out{rows, cols, {}};
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal(0, 0.15f);
    for (int64_t i = 0; i < rows * cols; ++i) {
      out.values.push_back(normal(engine));
    }
    return out;
  }
  static Matrix of(const WeightTensor& tensor) {
    Matrix out{tensor.dim(0), tensor.dim(1), {}};
    out.values.resize(size_t(out.rows * out.cols));
    read_as_f32(tensor, out.values.data());
    return out;
  }
  WeightTensor tensor() const {
    std::byte* data = nullptr;
    WeightTensor out = make_weight(DType::f32, {rows, cols}, &data);
    std::memcpy(data, values.data(), values.size() * 4);
    return out;
  }
};

// An adapter of one stem in the mlx form: lora_a [in, rank], lora_b [rank,
// out].
struct AdapterOnDisk {
  AdapterOnDisk(const std::string& stem, int64_t in, int64_t out, unsigned seed)
      : a(Matrix::random(in, kRank, seed)),
        b(Matrix::random(kRank, out, seed + 1)) {
    WeightMap tensors;
    tensors.set(stem + ".lora_a", a.tensor());
    tensors.set(stem + ".lora_b", b.tensor());
    write_safetensors(folder.path() / "adapters.safetensors", tensors);
    nlohmann::json config = {
        {"fine_tune_type", "lora"},
        {"lora_parameters", {{"rank", kRank}, {"scale", kConfigScale}}}};
    folder.write("adapter_config.json", config.dump());
  }

  // w += scale * (a b)^T, in f64.
  void add_to(Matrix& w, double scale) const {
    for (int64_t i = 0; i < w.rows; ++i) {
      for (int64_t j = 0; j < w.cols; ++j) {
        double sum = 0;
        for (int64_t r = 0; r < kRank; ++r) {
          sum += double(a.values[size_t(j * kRank + r)]) *
                 double(b.values[size_t(r * w.rows + i)]);
        }
        float& value = w.values[size_t(i * w.cols + j)];
        value = float(double(value) + scale * kConfigScale * sum);
      }
    }
  }

  Matrix a, b;
  TemporaryFolder folder;
};

Logits run(LoadOptions options, const std::vector<float>& scales) {
  options.backend = BackendKind::cpu;
  options.threads = 2;
  options.dtype = DType::f32;
  LoadedModel model = load_model(options);
  testing::SequenceRunner runner(*model.backend, *model.model);
  std::vector<int32_t> prompt = {7, 80, 33, 201, 5, 5, 118};
  return runner.prefill(runner.add(scales), prompt);
}

TEST(Composition, SurgeryAndAdaptersTogetherEqualWeightsMadeByHand) {
  fs::path base =
      testing::fixture_root() / "lora" / "bases" / "llama_untied_f32";
  WeightMap weights = read_safetensors(base / "model.safetensors").tensors;
  Matrix query = Matrix::of(weights.at(std::string(kQuery) + ".weight"));
  Matrix down = Matrix::of(weights.at(std::string(kDown) + ".weight"));
  AdapterOnDisk fused(kQuery, query.cols, query.rows, 1);
  AdapterOnDisk live(kDown, down.cols, down.rows, 11);
  // A second pair on the stem that surgery and the fused adapter change.
  AdapterOnDisk on_top(kQuery, query.cols, query.rows, 21);

  LoadOptions composed;
  TemporaryFolder recipe;
  composed.model = base;
  composed.surgery = recipe.write(
      "surgery.yaml",
      "version: 1\n"
      "operations:\n"
      "- {op: scale, pattern: '*.q_proj.weight', factor: 1.25}\n"
      "- {op: scale, pattern: '" +
          std::string(kDown) + ".weight', factor: -0.5}\n");
  composed.adapters = {
      {fused.folder.path(), 0.5f, true},
      {live.folder.path(), 2.0f, false},
      {on_top.folder.path(), 1.0f, false}};
  // A step gives one scale an adapter, by id; a fused one's has no effect.
  std::vector<float> scales = {0.0f, 2.0f, 1.0f};
  Logits together = run(composed, scales);

  TemporaryFolder by_hand;
  fs::copy(base / "config.json", by_hand.path() / "config.json");
  for (const std::string& key : weights.keys()) {
    if (!key.ends_with(".q_proj.weight") &&
        key != std::string(kDown) + ".weight") {
      continue;
    }
    Matrix w = Matrix::of(weights.at(key));
    float factor = key.ends_with(".q_proj.weight") ? 1.25f : -0.5f;
    for (float& value : w.values) {
      value *= factor;
    }
    if (key == std::string(kQuery) + ".weight") {
      fused.add_to(w, 0.5);
      on_top.add_to(w, 1.0);
    } else if (key == std::string(kDown) + ".weight") {
      live.add_to(w, 2.0);
    }
    weights.set(key, w.tensor());
  }
  write_safetensors(by_hand.path() / "model.safetensors", weights);
  LoadOptions plain;
  plain.model = by_hand.path();
  Logits wanted = run(plain, {});
  EXPECT_LE(testing::max_difference(together, wanted), 2e-4);

  // All of it matters: without the recipe the outputs are others.
  composed.surgery = recipe.write("empty.yaml", "version: 1\noperations: []\n");
  EXPECT_GT(testing::max_difference(run(composed, scales), wanted), 0.05);
}

}  // namespace
}  // namespace mlxcel
