// Gemma 3: Gemma 2 with norms on each head of q and k instead of soft caps,
// five sliding layers for each that sees everything, and a rotation for each
// kind.
#include "models/config_reading_gemma.h"
#include "models/families/families.h"

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
  BlockSpec block = gemma_block(config);
  block.attention.qk_norm = QkNorm::per_head;

  DecoderSpec decoder = gemma_decoder_of(config, block, 0);
  int pattern = config.get<int>("sliding_window_pattern");
  slide_layers(config, decoder, [&](int layer) {
    return pattern > 0 && (layer + 1) % pattern != 0;
  });
  gemma3_rotation(config, decoder);
  return decoder;
}

}  // namespace

const Family gemma3 = {
    .name = "Gemma 3",
    .type = "Gemma3",
    .model_types = {"gemma3", "gemma3_text"},
    .architectures = {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"},
    .vision_type = "Gemma3VLM",
    .decoder = gemma3_decoder,
    .names = wrapped(hf_decoder_names(gemma_norm_names())),
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
