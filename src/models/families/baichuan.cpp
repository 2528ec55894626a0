// Baichuan: Llama with one projection for q, k and v. The 13B models have
// linear biases in place of a rotation (their configs state no
// max_position_embeddings), the second generation divides each row of the head
// by its length.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec baichuan_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  if (!config.has("max_position_embeddings")) {
    block.attention.rope = nullptr;
    block.attention.extras.scores.alibi = true;
  }
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  constexpr int kSecondVocabulary = 125696;
  if (config.has("z_loss_weight") || decoder.vocab_size == kSecondVocabulary) {
    decoder.extras.head.rows = HeadRows::normalized;
  }
  return decoder;
}

}  // namespace

const Family baichuan = {
    .name = "Baichuan",
    .type = "Baichuan",
    .model_types = {"baichuan"},
    .architectures = {"BaiChuanForCausalLM", "BaichuanForCausalLM"},
    .decoder = baichuan_decoder,
    .defaults = {{"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names({split_rows(
        "layers.{l}.self_attn.W_pack",
        {"layers.{l}.attention.q",
         "layers.{l}.attention.k",
         "layers.{l}.attention.v"})}),
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
