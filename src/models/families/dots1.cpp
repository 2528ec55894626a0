// dots.llm1: the routing of DeepSeek 3 over plain attention with norms on each
// head of q and k.
#include "models/config_reading_moe.h"
#include "models/families/families.h"

#include <string>

namespace mlxcel {

namespace {

DecoderSpec dots1_decoder(const Config& given) {
  Config config = with_defaults(
      given, {{"norm_topk_prob", false}, {"sliding_window", 4096}});
  BlockSpec block = gated_block(config);
  block.attention.qk_norm = QkNorm::per_head;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  bool windowed = config.has("sliding_window");
  int first = config.get_or("max_window_layers", 62);
  slide_layers(
      config, decoder, [&](int layer) { return windowed && layer >= first; });
  mix_after_dense(config, decoder, deepseek3_moe(config));
  return decoder;
}

// An MLX conversion stacks the experts under the publisher's names.
std::vector<NameRule> dots1_names() {
  std::vector<NameRule> names = deepseek_moe_names();
  for (const std::string part : {"gate", "up", "down"}) {
    names.push_back(stack_experts(
        cat("layers.{l}.mlp.experts.", part, "_proj"),
        cat("layers.{l}.moe.experts.{e}.", part)));
  }
  return names;
}

}  // namespace

const Family dots1 = {
    .name = "dots.llm1",
    .type = "Dots1",
    .model_types = {"dots1"},
    .architectures = {"Dots1ForCausalLM"},
    .decoder = dots1_decoder,
    .defaults = {{"moe_intermediate_size", 1408}, {"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(dots1_names()),
    .features =
        {"attention_bias", "n_routed_experts", "sliding_window", "layer_types"},
};

}  // namespace mlxcel
