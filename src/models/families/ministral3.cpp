// Ministral 3: Mistral whose queries grow with their position.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec ministral3_decoder(const Config& given) {
  Config config = with_defaults(
      given,
      {{"head_dim", 128},
       {"rope_parameters",
        {{"rope_type", "yarn"},
         {"rope_theta", 1e6},
         {"factor", 16.0},
         {"original_max_position_embeddings", 16384},
         {"beta_fast", 32.0},
         {"beta_slow", 1.0},
         {"mscale", 1.0},
         {"mscale_all_dim", 1.0},
         {"llama_4_scaling_beta", 0.1}}}});
  BlockSpec block = gated_block(config);
  // The outer key goes first, as it does for the rotation.
  constexpr std::string_view original = "original_max_position_embeddings";
  Config rope = config.sub("rope_parameters");
  block.attention.extras.query_scaling = {
      .slope = rope.get<float>("llama_4_scaling_beta"),
      .length = config.has(original) ? config.get<int64_t>(original)
                                     : rope.get<int64_t>(original)};
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  slide_all_layers(config, decoder);
  return decoder;
}

}  // namespace

const Family ministral3 = {
    .name = "Ministral 3",
    .type = "Ministral3",
    .model_types = {"ministral3"},
    .architectures = {"Ministral3ForCausalLM"},
    .decoder = ministral3_decoder,
    .defaults = {{"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names(),
    .features = {"sliding_window", "layer_types"},
    .dropped = {"*.rotary_emb.inv_freq", "*.activation_scale"},
};

}  // namespace mlxcel
