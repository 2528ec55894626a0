// PLaMo: both halves of a block read one norm; query head h reads key head h
// modulo their number.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec plamo_decoder(const Config& config) {
  BlockSpec block = gated_block(
      config, {.interleaved = config.get_or("rope_traditional", false)});
  block.norms = NormPlacement::parallel;
  HeadCounts& heads = block.attention.heads;
  int shared = config.get_or("n_shared_head", 8);  // query heads a key head
  heads.key_value = shared > 0 ? (heads.query + shared - 1) / shared : 0;
  heads.order = HeadOrder::cycled;
  return uniform_decoder(config, block, HeadKind::own);
}

std::vector<NameRule> plamo_names() {
  const std::string layer = "layers.layers.{l}.";
  std::vector<NameRule> names = {
      {layer + "norm", {"layers.{l}.attention_norm"}}};
  for (const char* part : {"q", "k", "v", "o"}) {
    names.push_back(
        {cat(layer, "self_attn.", part, "_proj"),
         {cat("layers.{l}.attention.", part)}});
  }
  for (const char* part : {"gate", "up", "down"}) {
    names.push_back(
        {cat(layer, "mlp.", part, "_proj"), {cat("layers.{l}.mlp.", part)}});
  }
  return names;
}

}  // namespace

const Family plamo = {
    .name = "PLaMo",
    .type = "Plamo",
    .model_types = {"plamo"},
    .architectures = {"PlamoForCausalLM"},
    .decoder = plamo_decoder,
    .names = hf_decoder_names(plamo_names()),
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
