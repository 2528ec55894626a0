// Mamba 2: state spaces with one decay a head, in place of attention and MLP.
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec mamba2_decoder(const Config& config) {
  require_silu(config, "hidden_act");
  NormSpec norm{.eps = config.get_or("layer_norm_epsilon", 1e-5f)};
  auto mixer = state_space_mixer(
      config,
      {.heads = "num_heads",
       .head_dim = "head_dim",
       .groups = "n_groups",
       .state_size = "state_size",
       .taps = "conv_kernel",
       .convolution_bias = "use_conv_bias"},
      norm.eps);
  bool bias = config.get_or("use_bias", false);
  mixer->bias = {bias, bias};
  return uniform_decoder(config, mixer_block(norm, mixer), HeadKind::own);
}

}  // namespace

const Family mamba2 = {
    .name = "Mamba 2",
    .type = "Mamba2",
    .model_types = {"mamba2"},
    .architectures = {"Mamba2ForCausalLM"},
    .decoder = mamba2_decoder,
    .defaults = {{"conv_kernel", 4}, {"n_groups", 8}, {"state_size", 128}},
    .names = backbone_names(state_space_names("layers.{l}.mixer")),
    .features = {"use_bias"},
};

}  // namespace mlxcel
