// Seed-OSS: Llama with a bias on q, k and v.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec seed_oss_decoder(const Config& published) {
  Config config = with_defaults(published, {{"head_dim", 128}});
  BlockSpec block = gated_block(config);
  bool inputs = config.get_or("attention_bias", true);
  bool output = config.get_or("attention_out_bias", false);
  if (output && !inputs) {
    throw ConfigError(
        cat(config.file(), ": attention_out_bias without attention_bias"),
        "a bias on the output projection alone is not supported",
        "check both against the weights");
  }
  block.attention.bias = output   ? AttentionBias::all
                         : inputs ? AttentionBias::qkv
                                  : AttentionBias::none;
  return uniform_decoder(config, block, HeadKind::own);
}

}  // namespace

const Family seed_oss = {
    .name = "Seed-OSS",
    .type = "SeedOss",
    .model_types = {"seed_oss"},
    .architectures = {"SeedOssForCausalLM"},
    .decoder = seed_oss_decoder,
    .names = hf_decoder_names(),
    .features = {"attention_bias", "mlp_bias"},
};

}  // namespace mlxcel
