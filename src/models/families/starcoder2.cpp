// StarCoder 2: layer norms, biases everywhere (use_bias), a plain MLP, one
// window over all layers.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec starcoder2_decoder(const Config& config) {
  bool bias = config.get_or("use_bias", true);
  BlockSpec block{
      .norm =
          {.kind = NormKind::layer, .eps = config.get<float>("norm_epsilon")},
      .attention = grouped_query_attention(config),
      .mlp = {
          .intermediate_size = config.get<int>("intermediate_size"),
          .activation =
              activation_from_name(config, "hidden_act", "gelu_pytorch_tanh"),
          .kind = MlpKind::plain,
          .bias = bias ? MlpBias::all : MlpBias::none}};
  block.attention.bias = bias ? AttentionBias::all : AttentionBias::none;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  slide_all_layers(config, decoder);
  return decoder;
}

}  // namespace

const Family starcoder2 = {
    .name = "StarCoder 2",
    .type = "Starcoder2",
    .model_types = {"starcoder2"},
    .architectures = {"Starcoder2ForCausalLM"},
    .decoder = starcoder2_decoder,
    .defaults = {{"norm_epsilon", 1e-5}, {"num_key_value_heads", 2}},
    .names = hf_decoder_names({
        {"layers.{l}.mlp.c_fc", {"layers.{l}.mlp.up"}},
        {"layers.{l}.mlp.c_proj", {"layers.{l}.mlp.down"}},
    }),
    .features = {"use_bias", "sliding_window"},
};

}  // namespace mlxcel
