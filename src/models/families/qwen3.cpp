// Qwen 3: norms on each head of q and k, its own head size, windows as Qwen 2.
// Tied unless the config says otherwise.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec qwen3_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  block.attention.qk_norm = QkNorm::per_head;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  slide_upper_layers(config, decoder);
  return decoder;
}

}  // namespace

const Family qwen3 = {
    .name = "Qwen 3",
    .type = "Qwen3",
    .model_types = {"qwen3"},
    .architectures = {"Qwen3ForCausalLM"},
    .embed_pairs = EmbedPairs::when_tied,
    .decoder = qwen3_decoder,
    .defaults = {{"head_dim", 128}, {"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(),
    .features = {"attention_bias", "sliding_window", "layer_types"},
};

}  // namespace mlxcel
