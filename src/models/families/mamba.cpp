// Mamba and Falcon Mamba: selective state spaces in place of attention and MLP.
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec mamba_like_decoder(
    const Config& config, std::shared_ptr<const PartSpec> mixer) {
  NormSpec norm{.eps = config.get_or("layer_norm_epsilon", 1e-5f)};
  return uniform_decoder(
      config, mixer_block(norm, std::move(mixer)), HeadKind::tied);
}

DecoderSpec mamba_decoder(const Config& config) {
  return mamba_like_decoder(config, mamba_mixer(config));
}

DecoderSpec falcon_mamba_decoder(const Config& config) {
  auto mixer = mamba_mixer(config);
  mixer->inner_norms = InnerNorms::weightless;
  mixer->inner_eps = config.get_or("mixer_rms_eps", 1e-6f);
  return mamba_like_decoder(config, mixer);
}

}  // namespace

const Family mamba = {
    .name = "Mamba",
    .type = "Mamba",
    .model_types = {"mamba"},
    .architectures = {"MambaForCausalLM"},
    .decoder = mamba_decoder,
    .names = backbone_names(mamba_mixer_names("layers.{l}.mixer")),
    .features = {"use_bias"},
};

const Family falcon_mamba = {
    .name = "Falcon Mamba",
    .type = "Mamba",
    .model_types = {"falcon_mamba"},
    .architectures = {"FalconMambaForCausalLM"},
    .decoder = falcon_mamba_decoder,
    .names = backbone_names(mamba_mixer_names("layers.{l}.mixer")),
    .features = {"use_bias"},
};

}  // namespace mlxcel
