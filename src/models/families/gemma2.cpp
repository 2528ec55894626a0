// Gemma 2: Gemma with norms on both sides of each half, windows on every second
// layer, soft-capped attention and logits.
#include "models/config_reading_gemma.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec gemma2_decoder(const Config& config) {
  BlockSpec block = gemma_block(config);
  block.attention.softcap = soft_cap(config, "attn_logit_softcapping", 50);

  DecoderSpec decoder = gemma_decoder_of(config, block, 30);
  slide_layers(config, decoder, [](int layer) { return layer % 2 == 0; });
  return decoder;
}

}  // namespace

const Family gemma2 = {
    .name = "Gemma 2",
    .type = "Gemma2",
    .model_types = {"gemma2"},
    .architectures = {"Gemma2ForCausalLM"},
    .decoder = gemma2_decoder,
    .defaults =
        {{"head_dim", 256},
         {"query_pre_attn_scalar", 256},
         {"rms_norm_eps", 1e-6},
         {"sliding_window", 4096}},
    .names = hf_decoder_names(gemma_norm_names()),
    .features =
        {"attention_bias",
         "query_pre_attn_scalar",
         "attn_logit_softcapping",
         "final_logit_softcapping",
         "sliding_window",
         "layer_types"},
};

}  // namespace mlxcel
