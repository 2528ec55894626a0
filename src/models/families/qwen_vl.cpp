// Qwen 2, 2.5 and 3 VL without their towers: Qwen 2 and Qwen 3. The three
// position axes of their rotation are equal for text.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

// What they share, on top of `own`.
Family qwen_vl(
    std::string name, std::string type, std::string model_type, Family own) {
  own.name = std::move(name);
  own.type = own.vision_type = std::move(type);
  own.model_types = {model_type, model_type + "_text"};
  own.directory_route = DirectoryRoute::vlm;
  own.weight_route = WeightRoute::none;
  own.adapters = AdapterSupport::refused;
  own.adapter_refusal =
      "LoRA adapters are not supported for vision-language models";
  own.names = wrapped(hf_decoder_names());
  return own;
}

// Called once the text model's own family exists.
DecoderSpec qwen2_text(const Config& config) {
  return unchecked_spec(
      qwen2,
      with_defaults(config, {{"rope_theta", 1e6}, {"max_window_layers", 80}}));
}

DecoderSpec qwen3_text(const Config& config) {
  return unchecked_spec(qwen3, with_defaults(config, {{"rope_theta", 5e5}}));
}

}  // namespace

const Family qwen2_vl = qwen_vl(
    "Qwen 2 VL",
    "Qwen2VL",
    "qwen2_vl",
    {.architectures = {"Qwen2VLForConditionalGeneration"},
     .decoder = qwen2_text,
     .features = {"sliding_window", "layer_types"}});

const Family qwen2_5_vl = qwen_vl(
    "Qwen 2.5 VL",
    "Qwen25VL",
    "qwen2_5_vl",
    {.architectures = {"Qwen2_5_VLForConditionalGeneration"},
     .decoder = qwen2_text,
     .features = {"sliding_window", "layer_types"}});

const Family qwen3_vl = qwen_vl(
    "Qwen 3 VL",
    "Qwen3VL",
    "qwen3_vl",
    {.architectures = {"Qwen3VLForConditionalGeneration"},
     .decoder = qwen3_text,
     .features = {"attention_bias", "sliding_window", "layer_types"}});

}  // namespace mlxcel
