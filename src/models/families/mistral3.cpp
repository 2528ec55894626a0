// Mistral 3: a text model inside a config for text and images. Its own
// model_type decides which: Ministral 3, else Mistral.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec mistral3_decoder(const Config& config) {
  std::optional<Config> text = config.find_sub("text_config");
  bool ministral =
      text && text->get_or<std::string>("model_type", "") == "ministral3";
  return unchecked_spec(ministral ? ministral3 : mistral, config);
}

}  // namespace

const Family mistral3 = {
    .name = "Mistral 3",
    .type = "Mistral3",
    .model_types = {"mistral3"},
    .architectures = {"Mistral3ForConditionalGeneration"},
    .directory_route = DirectoryRoute::mistral3_dynamic,
    .weight_route = WeightRoute::llama_family,
    .vision_type = "Mistral3VLM",
    .decoder = mistral3_decoder,
    .names = wrapped(hf_decoder_names()),
    .features = {"attention_bias", "sliding_window", "layer_types"},
    .dropped = {"*.rotary_emb.inv_freq", "*.activation_scale"},
};

}  // namespace mlxcel
