// MiniCPM: Llama with scaled embeddings, halves (by depth) and, under a head of
// its own, logits.
#include "models/config_reading.h"
#include "models/families/families.h"

#include <cmath>

namespace mlxcel {

namespace {

DecoderSpec minicpm_decoder(const Config& config) {
  DecoderSpec decoder =
      uniform_decoder(config, gated_block(config), HeadKind::own);
  decoder.embedding_scale = config.get_or("scale_emb", 1.f);
  decoder.extras.residual_scale = config.get_or("scale_depth", 1.f) /
                                  std::sqrt(float(decoder.blocks.size()));
  if (decoder.head == HeadKind::own) {
    decoder.extras.logit_scale =
        config.get_or("dim_model_base", float(decoder.hidden_size)) /
        float(decoder.hidden_size);
  }
  return decoder;
}

}  // namespace

const Family minicpm = {
    .name = "MiniCPM",
    .type = "MiniCPM",
    .model_types = {"minicpm"},
    .architectures = {"MiniCPMForCausalLM"},
    .decoder = minicpm_decoder,
    .names = hf_decoder_names(),
    .features = {"scale_emb", "scale_depth"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
