// Gemma 3: Gemma 2 with norms on each head of q and k instead of soft caps,
// five sliding layers for each that sees everything, and a rotation for each
// kind.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

#include <cmath>

namespace mlxcel {

namespace {

// transformers' defaults: published configs with a text_config state only what
// differs.
Config gemma3_config(const Config& config) {
  return with_defaults(
      config,
      {{"vocab_size", 262208},
       {"hidden_size", 2304},
       {"intermediate_size", 9216},
       {"num_hidden_layers", 26},
       {"num_attention_heads", 8},
       {"num_key_value_heads", 4},
       {"head_dim", 256},
       {"rms_norm_eps", 1e-6},
       {"query_pre_attn_scalar", 256},
       {"sliding_window", 4096},
       {"sliding_window_pattern", 6}});
}

DecoderSpec gemma3_decoder(const Config& given) {
  Config config = gemma3_config(given);
  NormSpec norm = rms_norm(config);
  norm.weight_offset = 1;
  BlockSpec block{
      .norms = NormPlacement::sandwich,
      .norm = norm,
      .attention = grouped_query_attention(config),
      .mlp = gated_mlp(config, "hidden_activation", "gelu_pytorch_tanh")};
  block.attention.scale =
      1 / std::sqrt(config.get<float>("query_pre_attn_scalar"));
  block.attention.qk_norm = QkNorm::per_head;

  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  decoder.embedding_scale = std::sqrt(float(decoder.hidden_size));
  decoder.logit_softcap = number_or_off(config, "final_logit_softcapping", 0);
  int pattern = config.get<int>("sliding_window_pattern");
  slide_layers(config, decoder, [&](int layer) {
    return pattern > 0 && (layer + 1) % pattern != 0;
  });
  rotate_by_type(
      config,
      decoder,
      {.full_theta = 1e6,
       .sliding_theta = 1e4,
       .sliding_theta_key = "rope_local_base_freq"});
  return decoder;
}

}  // namespace

const Family gemma3 = {
    .name = "Gemma 3",
    .type = "Gemma3",
    .model_types = {"gemma3", "gemma3_text"},
    .architectures = {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"},
    .decoder = gemma3_decoder,
    .names = wrapped(hf_decoder_names({
        {"layers.{l}.post_attention_layernorm",
         {"layers.{l}.attention_post_norm"}},
        {"layers.{l}.pre_feedforward_layernorm", {"layers.{l}.mlp_norm"}},
        {"layers.{l}.post_feedforward_layernorm", {"layers.{l}.mlp_post_norm"}},
    })),
    .features =
        {"attention_bias",
         "query_pre_attn_scalar",
         "final_logit_softcapping",
         // Named in configs, but the published class caps no scores.
         "attn_logit_softcapping",
         "sliding_window",
         "sliding_window_pattern",
         "layer_types"},
};

}  // namespace mlxcel
