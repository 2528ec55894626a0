// Muse Glimmer's text model: norms on both sides with an eps of their own
// behind each half, weightless norms on the embedding and on q and k, gated
// attention, and every fourth layer, counted from the last, without window and
// rotation.
#include "models/config_reading_gemma.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

bool muse_sees_everything(const DecoderSpec& decoder, size_t layer) {
  return (decoder.blocks.size() - 1 - layer) % 4 == 0;
}

DecoderSpec muse_glimmer_decoder(const Config& given) {
  Config config = with_defaults(
      given,
      {{"head_dim", 128},
       {"rms_norm_eps", 1e-5},
       {"post_norm_eps", 1e-8},
       {"qk_scale_factor", 3.87},
       {"output_multiplier", 0.19611613513818404},
       {"sliding_window", 2048}});
  NormSpec norm = rms_norm(config);
  BlockSpec block{
      .norms = NormPlacement::sandwich,
      .norm = norm,
      .attention = grouped_query_attention(config),
      .mlp = gated_mlp(config, "hidden_activation", "silu")};
  block.norm.weight_offset = 1;
  block.norm.output_eps = config.get<float>("post_norm_eps");
  block.attention.qk_norm = QkNorm::weightless;
  block.attention.scale *= config.get<float>("qk_scale_factor");
  block.attention.extras.gate = OutputGate::unbiased;

  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  decoder.final_norm = norm;
  norm.tensors = NormTensors::none;
  decoder.extras.embedding_norm = norm;
  decoder.extras.logit_scale = config.get<float>("output_multiplier");
  decoder.logit_softcap = soft_cap(config, "final_logit_softcapping", 20);
  slide_layers(config, decoder, [&](int layer) {
    return !muse_sees_everything(decoder, size_t(layer));
  });
  // A theta of 0: no rotation. Others are taken to be the model's one theta.
  auto thetas = config.find<std::vector<double>>("layer_rope_theta");
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    bool turns = thetas && layer < thetas->size()
                     ? (*thetas)[layer] != 0
                     : !muse_sees_everything(decoder, layer);
    if (!turns) {
      decoder.blocks[layer].attention.rope = nullptr;
    }
  }
  return decoder;
}

std::vector<NameRule> muse_glimmer_names() {
  std::vector<NameRule> rules = gemma_norm_names();
  rules.push_back(
      {"layers.{l}.self_attn.gate_proj", {"layers.{l}.attention.gate"}});
  return rules;
}

}  // namespace

const Family muse_glimmer = {
    .name = "Muse Glimmer",
    .type = "MuseGlimmer",
    .model_types = {"muse_glimmer", "muse_glimmer_text"},
    .architectures = {"MuseGlimmerForConditionalGeneration"},
    .directory_route = DirectoryRoute::vlm,
    .weight_route = WeightRoute::none,
    .adapters = AdapterSupport::refused,
    .adapter_refusal = "LoRA adapters are not supported for Muse Glimmer",
    .vision_type = "MuseGlimmer",
    .decoder = muse_glimmer_decoder,
    .names = wrapped(hf_decoder_names(muse_glimmer_names())),
    .features =
        {"attention_bias",
         "final_logit_softcapping",
         "sliding_window",
         "layer_types"},
};

}  // namespace mlxcel
