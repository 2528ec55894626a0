// Nemotron NAS (Llama-Nemotron): Llama whose layers differ in key/value heads
// and width, lack a half, or have one matrix in its place, as block_configs
// say.
#include "models/config_reading.h"
#include "models/families/families.h"
#include "models/linear_part.h"

namespace mlxcel {

namespace {

// Two thirds of the multiple of the hidden size, rounded up to 256.
int nemotron_nas_width(double multiple, int hidden_size) {
  int width = int(2 * multiple * hidden_size / 3);
  return (width + 255) / 256 * 256;
}

// Whether the layer has this half; sets `part` where a matrix replaces it.
bool nemotron_nas_half(
    const Config& half,
    const char* role,
    bool biased,
    std::shared_ptr<const PartSpec>& part) {
  if (half.get_or("no_op", false)) {
    return false;
  }
  if (half.get_or("replace_with_linear", false)) {
    part = std::make_shared<LinearPart>(role, biased);
  }
  return true;
}

void nemotron_nas_layer(
    const Config& config,
    const Config& layer,
    int hidden_size,
    BlockSpec& block) {
  Config attention = layer.sub("attention");
  Config ffn = layer.sub("ffn");
  bool attends = nemotron_nas_half(
      attention,
      "attention.linear",
      block.attention.bias != AttentionBias::none,
      block.mixer);
  bool feeds = nemotron_nas_half(
      ffn, "mlp.linear", block.mlp.bias != MlpBias::none, block.feed_forward);
  if (!attends && !feeds) {
    throw ConfigError(
        cat(config.file(), ": a layer of block_configs has neither half"),
        "it would compute nothing",
        "take config.json from the model's original publisher");
  }
  for (const char* key : {"window_length", "sparsify", "num_sink_tokens"}) {
    if (attention.has(key)) {
      throw ConfigError(
          cat(config.file(), ": block_configs sets attention.", key),
          "it would change the result, and this family does not read it",
          "take config.json from the model's original publisher");
    }
  }
  block.halves = !attends ? Halves::feed_forward_only
                 : !feeds ? Halves::mixer_only
                          : Halves::both;
  if (attends && !block.mixer) {
    int group = attention.get<int>("n_heads_in_group");
    if (group <= 0) {
      throw ConfigError(
          cat(config.file(), ": n_heads_in_group is ", group),
          "a group of heads must have some",
          "take config.json from the model's original publisher");
    }
    block.attention.heads.key_value = block.attention.heads.query / group;
  }
  if (feeds && !block.feed_forward) {
    block.mlp.intermediate_size =
        nemotron_nas_width(ffn.get<double>("ffn_mult"), hidden_size);
  }
}

DecoderSpec nemotron_nas_decoder(const Config& published) {
  nlohmann::json json = published.json();
  json["intermediate_size"] = 1;  // each layer has its own
  Config config(std::move(json), published.file());
  DecoderSpec decoder =
      uniform_decoder(config, gated_block(config), HeadKind::own);
  const auto layers = published.json().find("block_configs");
  if (layers == published.json().end() || !layers->is_array() ||
      layers->size() != decoder.blocks.size()) {
    throw ConfigError(
        cat(config.file(), ": block_configs does not describe each layer"),
        cat("num_hidden_layers is ", decoder.blocks.size()),
        "take config.json from the model's original publisher");
  }
  for (size_t i = 0; i < layers->size(); ++i) {
    nemotron_nas_layer(
        config,
        Config((*layers)[i], config.file()),
        decoder.hidden_size,
        decoder.blocks[i]);
  }
  return decoder;
}

}  // namespace

const Family nemotron_nas = {
    .name = "Nemotron NAS",
    .type = "NemotronNAS",
    .model_types = {"nemotron-nas"},
    .architectures = {"DeciLMForCausalLM"},
    .decoder = nemotron_nas_decoder,
    .defaults = {{"rms_norm_eps", 1e-5}, {"rope_theta", 5e5}},  // as mlx-lm
    .names = hf_decoder_names(
        {{"layers.{l}.self_attn.linear", {"layers.{l}.attention.linear"}},
         {"layers.{l}.mlp.linear", {"layers.{l}.mlp.linear"}}}),
    .features = {"attention_bias", "mlp_bias"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
