// RWKV-7: time mixing with a generalised delta rule, and channel mixing.
#include "models/rwkv7.h"
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec rwkv7_decoder(const Config& config) {
  BlockSpec block;
  block.norm = {
      .kind = NormKind::layer, .eps = config.get_or("norm_eps", 1e-5f)};
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  decoder.extras.embedding_norm = block.norm;

  TimeMixingSpec time;
  time.head_dim = config.get_or<int64_t>("head_dim", 64);
  time.heads = time.head_dim > 0 ? int(decoder.hidden_size / time.head_dim) : 0;
  time.ranks = {
      .w = config.get<int>("decay_low_rank_dim"),
      .a = config.get<int>("a_low_rank_dim"),
      .v = config.get<int>("v_low_rank_dim"),
      .g = config.get<int>("gate_low_rank_dim")};
  auto channel = std::make_shared<ChannelMixingSpec>();
  channel->hidden_size = decoder.hidden_size;
  channel->intermediate_size = config.get<int64_t>("intermediate_size");
  channel->state = time.cache().state;
  time.state_after = decoder.hidden_size;
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    time.first_layer = layer == 0;
    decoder.blocks[layer].mixer = std::make_shared<TimeMixingSpec>(time);
    decoder.blocks[layer].feed_forward = channel;
  }
  return decoder;
}

FamilyNames rwkv7_names() {
  FamilyNames names;
  names.spellings = {{"model.", ""}, {"", ""}};
  names.rules = {
      {"embeddings", {"embedding"}},
      {"layers.0.pre_norm", {"embedding_norm"}},
      {"layers.{l}.attn_norm", {"layers.{l}.attention_norm"}},
      {"layers.{l}.ffn_norm", {"layers.{l}.mlp_norm"}},
      {"layers.{l}.attn.o_proj", {"layers.{l}.rwkv.out"}},
      {"layers.{l}.attn.g_norm", {"layers.{l}.rwkv.norm"}},
      {"layers.{l}.attn.g_norm.bias", {"layers.{l}.rwkv.norm_bias"}},
      {"layers.{l}.ffn.x_k", {"layers.{l}.channel.mix"}},
      {"layers.{l}.ffn.key", {"layers.{l}.channel.key"}},
      {"layers.{l}.ffn.value", {"layers.{l}.channel.value"}},
      {"norm", {"final_norm"}},
      {"lm_head", {"head"}}};
  auto add = [&](const std::string& stem, const std::string& role) {
    names.rules.push_back(
        {"layers.{l}.attn." + stem, {"layers.{l}.rwkv." + role}});
  };
  for (const std::string name : {"r", "k", "v", "w", "a", "g"}) {
    add("x_" + name, "mix_" + name);
  }
  for (const std::string name : {"r", "k", "v"}) {
    add(name + "_proj", name);
  }
  for (const std::string name : {"k_k", "k_a", "r_k"}) {
    add(name, name);
  }
  for (const std::string name : {"w", "a", "v", "g"}) {
    add(name + "_lora.lora.0", name + "_low");
    add(name + "_lora.lora.2", name + "_high");
  }
  return names;
}

}  // namespace

const Family rwkv7 = {
    .name = "RWKV-7",
    .type = "Rwkv7",
    .model_types = {"rwkv7"},
    .architectures = {"RWKV7ForCausalLM"},
    .decoder = rwkv7_decoder,
    .names = rwkv7_names(),
};

}  // namespace mlxcel
