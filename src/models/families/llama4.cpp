// Llama 4's text model: attention in chunks, but for every fourth layer, whose
// queries grow with their position; experts whose sigmoid weighs their input.
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

#include <algorithm>

namespace mlxcel {

namespace {

void llama4_attention(const Config& config, DecoderSpec& decoder) {
  std::vector<int> turning = rotating_layers(config, decoder.blocks.size());
  auto types = config.find<std::vector<std::string>>("layer_types");
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    AttentionSpec& attention = decoder.blocks[layer].attention;
    bool turns = turning[layer] != 0;
    bool chunked = types && layer < types->size()
                       ? (*types)[layer] == "chunked_attention"
                       : turns && config.has("attention_chunk_size");
    if (chunked) {
      attention.window = {config.get<int64_t>("attention_chunk_size"), true};
    }
    if (turns && is_on(config, "use_qk_norm")) {
      attention.qk_norm = QkNorm::weightless;
      attention.extras.qk_norm_order = QkNormOrder::after_rope;
    }
    attention.rope = turns ? attention.rope : nullptr;
    if (!turns && is_on(config, "attn_temperature_tuning")) {
      attention.extras.query_scaling = {
          .slope = config.get<float>("attn_scale"),
          .length = config.get<int64_t>("floor_scale"),
          .offset = 1};
    }
  }
}

void llama4_feed_forward(const Config& config, DecoderSpec& decoder) {
  MlpSpec expert = decoder.blocks.front().mlp;
  expert.intermediate_size = config.get<int>("intermediate_size");
  MoeSpec moe = local_experts_moe(config, expert);
  moe.routing = {
      .scores = RouterScores::sigmoid, .target = RouterTarget::input};
  moe.shared = moe.expert;
  int step = std::max(config.get_or("interleave_moe_layer_step", 1), 1);
  auto listed = config.find<std::vector<int>>("moe_layers");
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    if (listed ? std::ranges::count(*listed, int(layer)) > 0
               : (layer + 1) % size_t(step) == 0) {
      decoder.blocks[layer].moe = moe;
    }
  }
}

DecoderSpec llama4_decoder(const Config& given) {
  // transformers' defaults.
  Config config = with_defaults(
      given,
      {{"head_dim", 128},
       {"rms_norm_eps", 1e-5},
       {"intermediate_size_mlp", 16384},
       {"num_local_experts", 16},
       {"num_experts_per_tok", 1},
       {"attention_chunk_size", 8192},
       {"floor_scale", 8192},
       {"attn_scale", 0.1}});
  BlockSpec block = gated_block(config, {.theta = 5e5, .interleaved = true});
  block.mlp.intermediate_size = config.get<int>("intermediate_size_mlp");
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  llama4_attention(config, decoder);
  llama4_feed_forward(config, decoder);
  return decoder;
}

// Experts are separate stacks in an MLX conversion, and as published one stack
// of gate and up beside one of down, stored [in, out].
FamilyNames llama4_names() {
  const std::string block = "layers.{l}.feed_forward.";
  const std::string expert = "layers.{l}.moe.experts.{e}.";
  const std::string stacks = block + "experts.";
  std::vector<NameRule> rules = {{block + "router", {"layers.{l}.moe.router"}}};
  for (const std::string part : {"gate", "up", "down"}) {
    std::string stem = part + "_proj";
    rules.push_back({block + stem, {"layers.{l}.mlp." + part}});
    rules.push_back(
        {block + "shared_expert." + stem, {"layers.{l}.moe.shared." + part}});
    rules.push_back(stack_experts(stacks + stem, expert + part));
  }
  FamilyNames names = wrapped(hf_decoder_names(rules));
  names.stacks = {
      {.stem = stacks + "gate_up_proj",
       .parts = {stacks + "gate_proj", stacks + "up_proj"}},
      {.stem = stacks + "down_proj", .parts = {stacks + "down_proj"}}};
  return names;
}

}  // namespace

const Family llama4 = {
    .name = "Llama 4",
    .type = "Llama4",
    .model_types = {"llama4", "llama4_text"},
    .architectures = {"Llama4ForCausalLM", "Llama4ForConditionalGeneration"},
    .vision_type = "Llama4VLM",
    .decoder = llama4_decoder,
    .names = llama4_names(),
    .features =
        {"attention_bias",
         "attention_chunk_size",
         "use_qk_norm",
         "no_rope_layers",
         "layer_types",
         "num_local_experts"},
};

}  // namespace mlxcel
