// Gemma 4's text model: Gemma 3 without offsets and scales, with norms on the
// values, heads of another size and shared keys on the layers that see
// everything, inputs of each layer's own, last layers that share keys, and
// experts beside the MLP.
#include "core/error.h"
#include "models/config_reading_gemma.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

// transformers' defaults.
Config gemma4_config(const Config& config) {
  return with_defaults(
      config,
      {{"vocab_size", 262144},
       {"vocab_size_per_layer_input", 262144},
       {"hidden_size", 2304},
       {"hidden_size_per_layer_input", 256},
       {"intermediate_size", 9216},
       {"num_hidden_layers", 30},
       {"num_attention_heads", 8},
       {"num_key_value_heads", 4},
       {"head_dim", 256},
       {"global_head_dim", 512},
       {"rms_norm_eps", 1e-6},
       {"sliding_window", 512},
       {"rope_parameters",
        {{"sliding_attention",
          {{"rope_type", "default"}, {"rope_theta", 10000.0}}},
         {"full_attention",
          {{"rope_type", "proportional"},
           {"partial_rotary_factor", 0.25},
           {"rope_theta", 1000000.0}}}}}});
}

DecoderSpec gemma4_decoder(const Config& given) {
  Config config = gemma4_config(given);
  if (config.get_or<std::string>("use_bidirectional_attention", "") == "all") {
    throw ConfigError(
        cat(config.file(), ": use_bidirectional_attention is \"all\""),
        "rows would see what comes after them, and no text can be generated",
        "give a model that generates text");
  }
  BlockSpec block{
      .norms = NormPlacement::sandwich,
      .norm = rms_norm(config),
      .attention = unscaled_attention(config),
      .mlp = gated_mlp(config, "hidden_activation", "gelu_pytorch_tanh")};

  DecoderSpec decoder = gemma_decoder_of(config, block, 0);
  decoder.extras.per_layer = {
      .size = config.get_or("hidden_size_per_layer_input", 0),
      .vocab_size = config.get<int>("vocab_size_per_layer_input")};
  gemma4_attention(config, decoder);
  gemma4_feed_forward(config, decoder);
  return decoder;
}

}  // namespace

const Family gemma4 = {
    .name = "Gemma 4",
    .type = "Gemma4",
    .model_types = {"gemma4", "gemma4_text"},
    .architectures = {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"},
    .vision_type = "Gemma4VLM",
    .decoder = gemma4_decoder,
    .names = gemma4_names(),
    .features =
        {"attention_bias",
         "final_logit_softcapping",
         "sliding_window",
         "layer_types",
         "attention_k_eq_v",
         "enable_moe_block",
         "num_experts",
         "num_kv_shared_layers",
         "hidden_size_per_layer_input",
         "use_bidirectional_attention"},
    // Layers that share keys may still bring their own.
    .dropped =
        {"*.self_attn.k_proj.*",
         "*.self_attn.v_proj.*",
         "*.self_attn.k_norm.*",
         "*.self_attn.v_norm.*"},
};

}  // namespace mlxcel
