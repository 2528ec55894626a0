// Apertus: a plain MLP under xIELU, whose numbers each layer stores, and norms
// on each head of q and k.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec apertus_decoder(const Config& given) {
  Config config = with_defaults(given, {{"rms_norm_eps", 1e-5}});
  constexpr double kTheta = 12e6;
  if (!config.has("rope_scaling") && !config.has("rope_parameters")) {
    // What the reference's class takes.
    config = with_values(
        config,
        {{"rope_scaling",
          {{"rope_type", "llama3"},
           {"rope_theta", kTheta},
           {"factor", 8.0},
           {"original_max_position_embeddings", 8192},
           {"low_freq_factor", 1.0},
           {"high_freq_factor", 4.0}}}});
  }
  BlockSpec block{
      .norm = rms_norm(config),
      .attention = grouped_query_attention(config, {.theta = kTheta})};
  block.attention.qk_norm = QkNorm::per_head;
  block.mlp = {
      .intermediate_size = config.get<int>("intermediate_size"),
      .activation = Activation::xielu,
      .kind = MlpKind::plain};  // without biases, whatever mlp_bias says
  constexpr const char* kXielu = "xielu";
  if (config.get_or<std::string>("hidden_act", kXielu) != kXielu) {
    block.mlp.activation = activation_from_name(config, "hidden_act", kXielu);
  }
  return uniform_decoder(config, block, HeadKind::own);
}

std::vector<NameRule> apertus_names() {
  std::vector<NameRule> names = {
      {"layers.{l}.attention_layernorm", {"layers.{l}.attention_norm"}},
      {"layers.{l}.feedforward_layernorm", {"layers.{l}.mlp_norm"}}};
  for (const char* number : {"alpha_n", "alpha_p", "beta", "eps"}) {
    names.push_back(
        {cat("layers.{l}.mlp.act_fn.", number),
         {cat("layers.{l}.mlp.xielu.", number)}});
  }
  return names;
}

}  // namespace

const Family apertus = {
    .name = "Apertus",
    .type = "Apertus",
    .model_types = {"apertus"},
    .architectures = {"ApertusForCausalLM"},
    .decoder = apertus_decoder,
    .names = hf_decoder_names(apertus_names()),
    .features = {"attention_bias", "mlp_bias"},
};

}  // namespace mlxcel
