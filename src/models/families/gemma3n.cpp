// Gemma 3n's text model: Gemma 3 without offsets and scales, in AltUp blocks
// with inputs of each layer's own and last layers that share keys.
#include "models/config_reading_gemma.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

// transformers' defaults.
Config gemma3n_config(const Config& config) {
  return with_defaults(
      config,
      {{"vocab_size", 262400},
       {"vocab_size_per_layer_input", 262144},
       {"hidden_size", 2048},
       {"hidden_size_per_layer_input", 256},
       {"intermediate_size", 16384},
       {"num_hidden_layers", 35},
       {"num_attention_heads", 8},
       {"num_key_value_heads", 2},
       {"head_dim", 256},
       {"rms_norm_eps", 1e-6},
       {"sliding_window", 512},
       {"num_kv_shared_layers", 15},
       {"altup_num_inputs", 4},
       {"laurel_rank", 64}});
}

DecoderSpec gemma3n_decoder(const Config& given) {
  Config config = gemma3n_config(given);
  BlockSpec block{
      .norms = NormPlacement::sandwich,
      .norm = rms_norm(config),
      .attention = unscaled_attention(config)};
  block.mlp.activation =
      activation_from_name(config, "hidden_activation", "gelu_pytorch_tanh");

  DecoderSpec decoder = gemma_decoder_of(config, block, 30);
  decoder.extras.per_layer = {
      .size = config.get<int>("hidden_size_per_layer_input"),
      .vocab_size = config.get<int>("vocab_size_per_layer_input")};
  decoder.extras.streams = {
      .count = config.get<int>("altup_num_inputs"),
      .active = config.get_or("altup_active_idx", 0)};
  slide_layers(config, decoder, [](int layer) { return (layer + 1) % 5 != 0; });
  gemma3_rotation(config, decoder);
  share_with_last(config, decoder, config.get<int>("num_kv_shared_layers"));
  make_altup_blocks(config, decoder);
  return decoder;
}

std::vector<NameRule> gemma3n_names() {
  std::vector<NameRule> rules = gemma_norm_names();
  for (NameRule& rule : per_layer_names()) {
    rules.push_back(std::move(rule));
  }
  const std::string altup = "layers.{l}.altup.", laurel = "layers.{l}.laurel.";
  rules.insert(
      rules.end(),
      {{"altup_projections.{e}", {"streams.in.{e}"}},
       {"altup_unembed_projections.{e}", {"streams.out.{e}"}},
       {altup + "modality_router", {altup + "router"}},
       {altup + "router_norm", {altup + "router_norm"}},
       {altup + "prediction_coefs", {altup + "predict"}},
       {altup + "correction_coefs", {altup + "correct"}},
       {altup + "correct_output_scale", {altup + "scale"}},
       {laurel + "linear_left", {laurel + "left"}},
       {laurel + "linear_right", {laurel + "right"}},
       {laurel + "post_laurel_norm", {laurel + "norm"}}});
  return rules;
}

}  // namespace

const Family gemma3n = {
    .name = "Gemma 3n",
    .type = "Gemma3n",
    .model_types = {"gemma3n", "gemma3n_text"},
    .architectures = {"Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"},
    .directory_route = DirectoryRoute::nonstandard,
    .weight_route = WeightRoute::special,
    .vision_type = "Gemma3nVLM",
    .decoder = gemma3n_decoder,
    .names = wrapped(hf_decoder_names(gemma3n_names())),
    .features =
        {"attention_bias",
         "final_logit_softcapping",
         "sliding_window",
         "layer_types",
         "num_kv_shared_layers",
         "hidden_size_per_layer_input"},
    .dropped =
        {"*.self_attn.k_proj.*",
         "*.self_attn.v_proj.*",
         "*.self_attn.k_norm.*",
         "*.self_attn.v_norm.*",
         // Read only where altup_correct_scale is on.
         "*.altup.correct_output_scale"},
};

}  // namespace mlxcel
