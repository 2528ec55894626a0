// Seed-OSS: Llama with a bias on q, k and v.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec seed_oss_decoder(const Config& published) {
  Config config = with_defaults(published, {{"head_dim", 128}});
  BlockSpec block = gated_block(config);
  block.attention.bias = attention_bias(
      config.get_or("attention_bias", true),
      config.get_or("attention_out_bias", false));
  return uniform_decoder(config, block, HeadKind::own);
}

}  // namespace

const Family seed_oss = {
    .name = "Seed-OSS",
    .type = "SeedOss",
    .model_types = {"seed_oss"},
    .architectures = {"SeedOssForCausalLM"},
    .decoder = seed_oss_decoder,
    .defaults = {{"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(),
    .features = {"attention_bias", "mlp_bias"},
};

}  // namespace mlxcel
