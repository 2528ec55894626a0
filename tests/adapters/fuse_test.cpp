// Fused weights against the sum worked out by hand.
#include "adapters/fuse.h"

#include "core/error.h"
#include "models/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace mlxcel {
namespace {

using ::testing::Each;

WeightTensor filled(Shape shape, float value) {
  std::byte* data = nullptr;
  WeightTensor tensor = make_weight(DType::f32, std::move(shape), &data);
  std::vector<float> values(tensor.bytes / sizeof(float), value);
  std::memcpy(data, values.data(), tensor.bytes);
  return tensor;
}

std::vector<float> values_of(const WeightTensor& tensor) {
  std::vector<float> values(tensor.bytes / sizeof(float));
  read_as_f32(tensor, values.data());
  return values;
}

// A recipe can put one source tensor into several layers.
TEST(Fuse, TensorsThatShareBytesGetTheirOwnTerms) {
  const Family& family = *find_by_model_type("llama");
  nlohmann::json config = {
      {"hidden_size", 4},
      {"num_hidden_layers", 3},
      {"num_attention_heads", 1},
      {"intermediate_size", 4},
      {"vocab_size", 8},
      {"rms_norm_eps", 1e-5}};
  DecoderSpec spec = decoder_spec(family, Config(config, "config.json"));
  NameMap names(family.names, spec);
  auto stem = [](int layer) {
    return cat("model.layers.", layer, ".self_attn.q_proj");
  };
  WeightMap weights;
  WeightTensor shared = filled({4, 4}, 1);
  for (int layer = 0; layer < 3; ++layer) {
    weights.set(stem(layer) + ".weight", shared);
  }
  Adapter adapter;
  adapter.config.scale = 1;
  adapter.pairs = {
      {stem(0), filled({4, 1}, 2), filled({1, 4}, 5)},
      {stem(1), filled({4, 1}, 3), filled({1, 4}, 7)}};
  AdapterBase base{family, spec, names, weights};
  ResolvedAdapter resolved = resolve_adapter(adapter, base);
  ThreadPool pool(1);
  fuse_adapters({{&resolved, 1}}, base, weights, pool);
  EXPECT_THAT(values_of(weights.at(stem(0) + ".weight")), Each(1 + 2 * 5));
  EXPECT_THAT(values_of(weights.at(stem(1) + ".weight")), Each(1 + 3 * 7));
  EXPECT_THAT(values_of(weights.at(stem(2) + ".weight")), Each(1));
}

}  // namespace
}  // namespace mlxcel
