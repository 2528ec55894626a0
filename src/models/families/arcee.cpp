// Arcee: Llama with a plain MLP of squared relu.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec arcee_decoder(const Config& config) {
  bool bias = config.get_or("mlp_bias", false);
  return uniform_decoder(
      config,
      {.norm = rms_norm(config),
       .attention = grouped_query_attention(config),
       .mlp = plain_mlp(
           config, "hidden_act", "relu2", bias ? MlpBias::all : MlpBias::none)},
      HeadKind::own);
}

}  // namespace

const Family arcee = {
    .name = "Arcee",
    .type = "Arcee",
    .model_types = {"arcee"},
    .architectures = {"ArceeForCausalLM"},
    .decoder = arcee_decoder,
    .defaults = {{"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names(),
    .features = {"attention_bias", "mlp_bias"},
};

}  // namespace mlxcel
