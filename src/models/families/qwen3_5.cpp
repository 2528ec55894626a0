// Qwen 3.5: gated delta layers with gated attention in every fourth.
#include "models/config_reading.h"
#include "models/families/families.h"
#include "models/families/qwen3_hybrid.h"

namespace mlxcel {

namespace {

DecoderSpec qwen3_5_decoder(const Config& config) {
  return qwen3_hybrid_decoder(
      config, gated_mlp(config), DeltaProjections::separate);
}

}  // namespace

const Family qwen3_5 = {
    .name = "Qwen 3.5",
    .type = "Qwen35",
    .model_types = {"qwen3_5", "qwen3_5_text"},
    .architectures = {"Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"},
    .vision_type = "Qwen35VLM",
    .decoder = qwen3_5_decoder,
    .defaults =
        {{"head_dim", 256},
         {"linear_key_head_dim", 128},
         {"linear_num_value_heads", 32},
         {"linear_value_head_dim", 128},
         {"rms_norm_eps", 1e-6}},
    .names = qwen3_5_names(),
    .features = {"partial_rotary_factor", "attention_bias", "layer_types"},
    .dropped = {"mtp.*", "*.mtp.*"},
};

}  // namespace mlxcel
