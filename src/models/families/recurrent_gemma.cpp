// Recurrent Gemma (Griffin): gated linear recurrences, with local attention in
// every third layer.
#include "core/half.h"
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"
#include "models/rg_lru.h"

#include <cmath>

namespace mlxcel {

namespace {

DecoderSpec recurrent_gemma_decoder(const Config& config) {
  NormSpec norm = rms_norm(config);
  norm.weight_offset = 1;
  BlockSpec block{
      .norm = norm,
      .mlp = gated_mlp(config, "hidden_activation", "gelu_pytorch_tanh")};
  block.mlp.intermediate_size /= 2;  // of gate and up together
  block.mlp.bias = MlpBias::all;
  block.attention = grouped_query_attention(config, {.partial = 0.5});
  block.attention.bias = config.get_or("attention_bias", false)
                             ? AttentionBias::all
                             : AttentionBias::output;
  block.attention.window = positive_size(config, "attention_window_size");
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  // The published class keeps the factor in bf16.
  decoder.embedding_scale =
      bf16_to_f32(f32_to_bf16(std::sqrt(float(decoder.hidden_size))));
  decoder.logit_softcap = soft_cap(config, "logits_soft_cap", 30);

  if (block.mlp.activation != Activation::gelu_tanh) {
    throw ConfigError(
        cat(config.file(), ": hidden_activation is not gelu_pytorch_tanh"),
        "the recurrent layers are built with it",
        "take config.json from the model's original publisher");
  }
  auto mixer = std::make_shared<RgLruSpec>();
  mixer->taps = config.get_or("conv1d_width", 4);
  mixer->blocks = block.attention.heads.query;
  mixer->width = config.get_or<int64_t>("lru_width", decoder.hidden_size);
  auto types = config.get_or(
      "block_types",
      std::vector<std::string>{"recurrent", "recurrent", "attention"});
  for (size_t layer = 0; layer < decoder.blocks.size() && !types.empty();
       ++layer) {
    if (types[layer % types.size()] == "recurrent") {
      decoder.blocks[layer].mixer = mixer;
    }
  }
  return decoder;
}

std::vector<NameRule> recurrent_gemma_names() {
  const std::string block = "layers.{l}.temporal_block";
  auto recurrent = [&](const char* stem, const char* role) {
    return NameRule{block + stem, {cat("layers.{l}.rg_lru.", role)}};
  };
  auto attention = [&](const char* name) {
    return NameRule{
        cat(block, ".", name, "_proj"), {cat("layers.{l}.attention.", name)}};
  };
  auto mlp = [](const char* name) {
    return NameRule{
        cat("layers.{l}.mlp_block.", name, "_proj"),
        {cat("layers.{l}.mlp.", name)}};
  };
  return {
      {"layers.{l}.temporal_pre_norm", {"layers.{l}.attention_norm"}},
      {"layers.{l}.channel_pre_norm", {"layers.{l}.mlp_norm"}},
      {"final_norm", {"final_norm"}},
      recurrent(".linear_y", "y"),
      recurrent(".linear_x", "x"),
      recurrent(".linear_out", "out"),
      recurrent(".conv_1d", "conv"),
      recurrent(".conv_1d.bias", "conv_bias"),
      recurrent(".rg_lru.input_gate_weight", "input_gate"),
      recurrent(".rg_lru.input_gate_bias", "input_gate_bias"),
      recurrent(".rg_lru.recurrent_gate_weight", "recurrent_gate"),
      recurrent(".rg_lru.recurrent_gate_bias", "recurrent_gate_bias"),
      recurrent(".rg_lru.recurrent_param", "decay"),
      attention("q"),
      attention("k"),
      attention("v"),
      attention("o"),
      mlp("gate"),
      mlp("up"),
      mlp("down")};
}

}  // namespace

const Family recurrent_gemma = {
    .name = "Recurrent Gemma",
    .type = "RecurrentGemma",
    .model_types = {"recurrent_gemma"},
    .architectures = {"RecurrentGemmaForCausalLM"},
    .decoder = recurrent_gemma_decoder,
    .defaults = {{"attention_window_size", 2048}, {"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(recurrent_gemma_names()),
    .features = {"partial_rotary_factor", "attention_bias", "layer_types"},
};

}  // namespace mlxcel
