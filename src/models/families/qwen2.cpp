// Qwen 2 and 2.5: biases on q, k and v; the layers from max_window_layers on
// may slide.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec qwen2_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  block.attention.bias = AttentionBias::qkv;  // whatever attention_bias says
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  slide_upper_layers(config, decoder);
  return decoder;
}

}  // namespace

const Family qwen2 = {
    .name = "Qwen 2",
    .type = "Qwen2",
    .model_types = {"qwen2"},
    .architectures = {"Qwen2ForCausalLM"},
    .embed_pairs = EmbedPairs::when_tied,
    .decoder = qwen2_decoder,
    .defaults = {{"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(),
    .features = {"attention_bias", "sliding_window", "layer_types"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
