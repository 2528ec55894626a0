// MiniCPM 3: latent attention in MiniCPM's scaled blocks.
#include "models/config_reading_latent.h"
#include "models/config_reading_layers.h"
#include "models/families/families.h"

#include <algorithm>
#include <cmath>

namespace mlxcel {

namespace {

const nlohmann::json& minicpm3_defaults() {
  static const nlohmann::json values = {
      {"kv_lora_rank", 256},
      {"q_lora_rank", 768},
      {"qk_nope_head_dim", 64},
      {"qk_rope_head_dim", 32},
      {"rms_norm_eps", 1e-5},
      {"scale_emb", 12},
      {"scale_depth", 1.4},
      {"dim_model_base", 256}};
  return values;
}

// Without v_head_dim, values have the hidden size over the heads.
Config minicpm3_config(const Config& given) {
  Config config = with_defaults(given, minicpm3_defaults());
  if (config.has("v_head_dim")) {
    return config;
  }
  nlohmann::json json = config.json();
  json["v_head_dim"] = config.get<int>("hidden_size") /
                       std::max(1, config.get<int>("num_attention_heads"));
  Config out(std::move(json), config.file());
  out.set_layout(config.layout());
  return out;
}

// Null turns a scale off.
DecoderSpec minicpm3_decoder(const Config& given) {
  Config config = minicpm3_config(given);
  DecoderSpec decoder = uniform_decoder(
      config,
      latent_block(config, latent_attention(config, {})),
      HeadKind::tied);
  float depth = std::sqrt(float(decoder.blocks.size()));
  auto width = float(decoder.hidden_size);
  decoder.embedding_scale = config.get<float>("scale_emb");
  decoder.extras.residual_scale = config.get_or("scale_depth", depth) / depth;
  decoder.extras.logit_scale = config.get_or("dim_model_base", width) / width;
  return decoder;
}

}  // namespace

const Family minicpm3 = {
    .name = "MiniCPM 3",
    .type = "MiniCPM3",
    .model_types = {"minicpm3"},
    .architectures = {"MiniCPM3ForCausalLM"},
    .decoder = minicpm3_decoder,
    .names = hf_decoder_names(latent_names()),
    .features =
        {"attention_bias",
         "mlp_bias",
         "kv_lora_rank",
         "scale_emb",
         "scale_depth"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
