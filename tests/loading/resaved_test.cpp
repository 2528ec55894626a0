// Kimi Linear's checkpoints as transformers 5.24 writes them after loading the
// publisher's: by default in the publisher's names, with dense layers below the
// experts' block too, or (save_original_format=False) in the names of its
// class.
#include "io/json.h"
#include "io/safetensors.h"
#include "loading/pipeline.h"
#include "support/models/sequences.h"
#include "support/models/text_case.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

namespace mlxcel {
namespace {

using testing::TemporaryFolder;
using testing::TextCase;

std::string replaced(std::string text, const char* from, const char* to) {
  if (size_t at = text.find(from); at != std::string::npos) {
    text.replace(at, std::strlen(from), to);
  }
  return text;
}

// The tensors' bytes one after the other.
WeightTensor joined(const std::vector<WeightTensor>& tensors, Shape shape) {
  std::byte* data = nullptr;
  WeightTensor out =
      make_weight(tensors.front().dtype, std::move(shape), &data);
  for (const WeightTensor& tensor : tensors) {
    std::memcpy(data, tensor.data, tensor.bytes);
    data += tensor.bytes;
  }
  return out;
}

class ResavedKimiLinear : public ::testing::Test {
 protected:
  ResavedKimiLinear()
      : case_(testing::load_text_case("text", "kimi_linear")),
        config_(read_json_file(case_.model / "config.json")),
        published_(
            read_safetensors(case_.model / "model.safetensors").tensors) {
    config_["layer_types"] = {"linear_attention", "full_attention"};
    config_["mlp_layer_types"] = {"dense", "sparse"};
  }

  void expect_the_same(const WeightMap& weights) const {
    TemporaryFolder folder;
    folder.write("config.json", config_.dump());
    write_safetensors(folder.path() / "model.safetensors", weights);
    LoadOptions options;
    options.model = folder.path();
    options.backend = BackendKind::cpu;
    LoadedModel model = load_model(options);
    testing::SequenceRunner runner(*model.backend, *model.model);
    EXPECT_LE(
        testing::max_difference(
            runner.prefill(runner.add(), case_.input_ids), case_.logits),
        case_.meta["abs_tolerance"].get<double>());
  }

  WeightMap in_the_names_of_the_class() const {
    WeightMap weights;
    for (const auto& [key, tensor] : published_) {
      std::string name = replaced(key, ".block_sparse_moe.", ".mlp.");
      for (const char* part : {"f_a_proj.", "f_b_proj.", "dt_bias", "A_log"}) {
        name = replaced(name, part, cat("forget_gate.", part).c_str());
      }
      if (name.find(".experts.") == std::string::npos &&
          name.find("_conv1d.") == std::string::npos) {
        weights.set(name, tensor);
      }
    }
    const std::string attention = "model.layers.0.self_attn.";
    std::vector<WeightTensor> taps, inner, outer;
    for (const char* part : {"q", "k", "v"}) {
      taps.push_back(published_.at(cat(attention, part, "_conv1d.weight")));
    }
    Shape shape = taps.front().shape;
    weights.set(
        attention + "conv1d.weight",
        joined(taps, {3 * shape[0], shape[1], shape[2]}));
    int experts = config_["num_experts"].get<int>();
    for (int e = 0; e < experts; ++e) {
      auto matrix = [&](const char* name) {
        return published_.at(
            cat("model.layers.1.block_sparse_moe.experts.",
                e,
                ".",
                name,
                ".weight"));
      };
      inner.push_back(matrix("w1"));
      inner.push_back(matrix("w3"));
      outer.push_back(matrix("w2"));
    }
    Shape up = inner.front().shape;
    const std::string stack = "model.layers.1.mlp.experts.";
    weights.set(
        stack + "gate_up_proj", joined(inner, {experts, 2 * up[0], up[1]}));
    weights.set(stack + "down_proj", joined(outer, {experts, up[1], up[0]}));
    return weights;
  }

  TextCase case_;
  nlohmann::json config_;
  WeightMap published_;
};

TEST_F(ResavedKimiLinear, LoadsInThePublishersNames) {
  WeightMap weights;
  for (const auto& [key, tensor] : published_) {
    weights.set(
        replaced(key, "layers.0.mlp.", "layers.0.block_sparse_moe."), tensor);
  }
  expect_the_same(weights);
}

TEST_F(ResavedKimiLinear, LoadsInTheNamesOfTheClass) {
  expect_the_same(in_the_names_of_the_class());
}

// A config that was never the publisher's.
TEST_F(ResavedKimiLinear, LoadsWithTheConfigOfTheClass) {
  const nlohmann::json section = config_["linear_attn_config"];
  config_.erase("linear_attn_config");
  config_.erase("first_k_dense_replace");
  config_["linear_num_heads"] = section["num_heads"];
  config_["linear_head_dim"] = section["head_dim"];
  config_["linear_conv_kernel_dim"] = section["short_conv_kernel_size"];
  expect_the_same(in_the_names_of_the_class());
}

}  // namespace
}  // namespace mlxcel
