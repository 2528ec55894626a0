#include "core/error.h"
#include "io/safetensors.h"
#include "surgery/edits.h"

#include <gtest/gtest.h>

#include <cstring>

namespace mlxcel {
namespace {

// Expected triples come from MLX (tests/oracle/requantize.py).
class Requantize : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(Requantize, EqualsQuantizingTheChangedWeights) {
  auto [bits, group] = GetParam();
  std::string name = cat("b", bits, "g", group);
  SafetensorsFile file =
      read_safetensors(MLXCEL_TEST_DATA "/requantize.safetensors");
  WeightMap weights;
  for (const char* part : {"weight", "scales", "biases"}) {
    weights.set(std::string("w.") + part, file.tensors.at(name + "." + part));
  }
  ThreadPool pool(2);
  struct Part {
    TriplePart part;
    const char* name;
  };
  for (const Part& part :
       {Part{TriplePart::weight, "weight"},
        Part{TriplePart::scales, "scales"},
        Part{TriplePart::biases, "biases"}}) {
    auto edit = requantize_edit(
        "w", bits, add_edit(file.tensors.at(name + ".delta"), 0.5f), part.part);
    edit->prepare(pool, weights);
    const WeightTensor& target = weights.at(std::string("w.") + part.name);
    std::vector<std::byte> got(target.bytes);
    edit->apply(target, 0, element_count(target.shape), got.data());
    const WeightTensor& want =
        file.tensors.at(name + ".want_" + std::string(part.name));
    if (part.part == TriplePart::weight) {
      // Equal codes: both sides round the same f32 quotient.
      EXPECT_EQ(std::memcmp(got.data(), want.data, want.bytes), 0);
      continue;
    }
    for (int64_t i = 0; i < element_count(want.shape); ++i) {
      float a;
      float b;
      std::memcpy(&a, got.data() + 4 * i, 4);
      std::memcpy(&b, want.data + 4 * i, 4);
      EXPECT_NEAR(a, b, 1e-6 * std::abs(b)) << part.name << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats,
    Requantize,
    ::testing::Values(
        std::pair{4, 32},
        std::pair{4, 64},
        std::pair{8, 32},
        std::pair{8, 64}));

}  // namespace
}  // namespace mlxcel
