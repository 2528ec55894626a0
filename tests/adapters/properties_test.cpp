// What has to hold for any adapters on any model: fused and live agree with a
// sum in f64, order and company change nothing, scale zero is the base.
#include "adapters/random_llama.h"
#include "core/cpu_features.h"
#include "loading/pipeline.h"
#include "support/models/sequences.h"
#include "support/models/text_case.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace mlxcel {
namespace {

using testing::Logits;
using testing::RandomAdapter;
using testing::RandomLlama;
using testing::SequenceRunner;
using testing::TemporaryFolder;

constexpr unsigned kSeeds = 12;

struct Use {
  const RandomAdapter* adapter;
  float scale;
};

LoadedModel load(
    const std::filesystem::path& model,
    const std::vector<Use>& uses,
    bool fuse,
    std::optional<DType> dtype = {}) {
  LoadOptions options;
  options.model = model;
  options.backend = BackendKind::cpu;
  options.dtype = dtype;
  options.threads = 2;
  for (const Use& use : uses) {
    options.adapters.push_back({use.adapter->folder, use.scale, fuse});
  }
  return load_model(options);
}

std::vector<float> scales_of(const std::vector<Use>& uses) {
  std::vector<float> out;
  for (const Use& use : uses) {
    out.push_back(use.scale);
  }
  return out;
}

std::vector<int32_t> tokens(const RandomLlama& llama, int count) {
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) {
    out.push_back(int32_t((i * 37 + 5) % llama.vocab()));
  }
  return out;
}

// Logits of a prompt and of three generated rows after it.
Logits run(
    LoadedModel& model,
    const RandomLlama& llama,
    const std::vector<float>& scales) {
  SequenceRunner runner(*model.backend, *model.model);
  int sequence = runner.add(scales);
  Logits out = runner.prefill(sequence, tokens(llama, 11));
  for (int32_t token : {3, 17, 9}) {
    out.push_back(runner.decode(sequence, token));
  }
  return out;
}

double largest(const Logits& logits) {
  double out = 0;
  for (const std::vector<float>& row : logits) {
    for (float value : row) {
      out = std::max(out, std::abs(double(value)));
    }
  }
  return out;
}

class AdapterProperties : public ::testing::TestWithParam<unsigned> {
 protected:
  TemporaryFolder folder_;
  RandomLlama llama_{folder_.path(), GetParam()};
};

// Fused weights keep the base dtype, so f16 and bf16 allow for one rounding of
// each weight beside f32 arithmetic.
TEST_P(AdapterProperties, FusedAndLiveGiveTheSumInF64) {
  RandomAdapter a = llama_.add_adapter(), b = llama_.add_adapter();
  std::vector<Use> uses = {{&a, 1}, {&b, -0.5f}};
  LoadedModel reference = load(
      llama_.write_changed("changed", {{&a, 1}, {&b, -0.5}}),
      {},
      false,
      DType::f32);
  Logits expected = run(reference, llama_, {});
  double size = largest(expected);

  LoadedModel live = load(llama_.model(), uses, false, DType::f32);
  EXPECT_LE(
      testing::max_difference(run(live, llama_, scales_of(uses)), expected),
      1e-4 * size);
  LoadedModel fused = load(llama_.model(), uses, true, DType::f32);
  double rounding = llama_.dtype() == DType::f32   ? 1e-4
                    : llama_.dtype() == DType::f16 ? 1e-2
                                                   : 8e-2;
  EXPECT_LE(
      testing::max_difference(run(fused, llama_, {}), expected),
      rounding * size);
}

TEST_P(AdapterProperties, TheOrderOfFusedAdaptersChangesNoBit) {
  RandomAdapter a = llama_.add_adapter(), b = llama_.add_adapter(),
                c = llama_.add_adapter();
  std::vector<Use> uses = {{&a, 1}, {&b, -0.75f}, {&c, 0.3f}, {&a, 0.5f}};
  LoadedModel first = load(llama_.model(), uses, true);
  Logits expected = run(first, llama_, {});
  for (int i = 0; i < 3; ++i) {
    std::rotate(uses.begin(), uses.begin() + 1, uses.end());
    std::swap(uses[0], uses[2]);
    LoadedModel other = load(llama_.model(), uses, true);
    EXPECT_EQ(testing::max_difference(run(other, llama_, {}), expected), 0);
  }
}

TEST_P(AdapterProperties, ScaleZeroIsTheBaseBitForBit) {
  RandomAdapter a = llama_.add_adapter(), b = llama_.add_adapter();
  LoadedModel base = load(llama_.model(), {}, false);
  Logits expected = run(base, llama_, {});
  std::vector<Use> uses = {{&a, 0.f}, {&b, 0.f}};
  LoadedModel fused = load(llama_.model(), uses, true);
  EXPECT_EQ(testing::max_difference(run(fused, llama_, {}), expected), 0);
  LoadedModel live = load(llama_.model(), uses, false);
  for (const std::vector<float>& scales :
       {std::vector<float>{}, {0}, {0, 0}, {-0.f, 0}}) {
    EXPECT_EQ(testing::max_difference(run(live, llama_, scales), expected), 0);
  }
  // The adapters do act at other scales.
  EXPECT_GT(testing::max_difference(run(live, llama_, {1, 0}), expected), 0);
}

// Prompts together, then generated rows beside a new prompt; each sequence with
// its own scales, as many generated rows as take every kernel's path.
TEST_P(AdapterProperties, RowsWithTheirOwnAdaptersEqualThemselvesAlone) {
  RandomAdapter a = llama_.add_adapter(), b = llama_.add_adapter();
  LoadedModel model = load(llama_.model(), {{&a, 1}, {&b, 1}}, false);
  const std::vector<std::vector<float>> scales = {
      {1, 0}, {}, {0, 1}, {0.5f, -1}, {0, 0}, {1, 0}, {0, 0.25f}, {2, 2}};
  SequenceRunner single(*model.backend, *model.model);
  SequenceRunner batch(*model.backend, *model.model);
  std::vector<SequenceRunner::Piece> prompts, generated;
  Logits prompt_rows, generated_rows;
  for (size_t i = 0; i < scales.size(); ++i) {
    std::vector<int32_t> prompt = tokens(llama_, 3 + int(i) % 4);
    int alone = single.add(scales[i]);
    Logits rows = single.prefill(alone, prompt);
    prompt_rows.insert(prompt_rows.end(), rows.begin(), rows.end());
    generated_rows.push_back(single.decode(alone, int32_t(i)));
    prompts.push_back({.sequence = batch.add(scales[i]), .tokens = prompt});
    generated.push_back(
        {.sequence = int(i), .tokens = {int32_t(i)}, .prompt = false});
  }
  EXPECT_EQ(testing::max_difference(batch.run(prompts), prompt_rows), 0);

  std::vector<int32_t> late = tokens(llama_, 6);
  Logits late_rows = single.prefill(single.add({0, 1}), late);
  generated.insert(
      generated.begin(), {.sequence = batch.add({0, 1}), .tokens = late});
  late_rows.insert(
      late_rows.end(), generated_rows.begin(), generated_rows.end());
  EXPECT_EQ(testing::max_difference(batch.run(generated), late_rows), 0);
}

// Adapter ids count all adapters of the load, fused ones too.
TEST_P(AdapterProperties, IdsCountFusedAdaptersToo) {
  RandomAdapter a = llama_.add_adapter(), b = llama_.add_adapter();
  LoadOptions options;
  options.model = llama_.model();
  options.backend = BackendKind::cpu;
  options.dtype = DType::f32;
  options.adapters = {{a.folder, 1, true}, {b.folder, 1, false}};
  LoadedModel mixed = load_model(options);
  LoadedModel fused = load(llama_.model(), {{&a, 1}}, true, DType::f32);
  EXPECT_EQ(
      testing::max_difference(
          run(mixed, llama_, {1, 0}), run(fused, llama_, {})),
      0);
  EXPECT_GT(
      testing::max_difference(
          run(mixed, llama_, {0, 1}), run(fused, llama_, {})),
      0);
}

INSTANTIATE_TEST_SUITE_P(
    Random, AdapterProperties, ::testing::Range(0u, kSeeds));

}  // namespace
}  // namespace mlxcel
