// EXAONE 3: Llama under other names.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec exaone_decoder(const Config& config) {
  Config usual = overridden(
      config,
      {{"num_layers", "num_hidden_layers"},
       {"layer_norm_epsilon", "rms_norm_eps"},
       {"activation_function", "hidden_act"}});
  return uniform_decoder(
      usual, gated_block(usual, {.theta = 500000}), HeadKind::own);
}

FamilyNames exaone_names() {
  const std::string attention = "h.{l}.attn.attention.";
  FamilyNames names = hf_decoder_names({
      {"wte", {"embedding"}},
      {"h.{l}.ln_1", {"layers.{l}.attention_norm"}},
      {attention + "q_proj", {"layers.{l}.attention.q"}},
      {attention + "k_proj", {"layers.{l}.attention.k"}},
      {attention + "v_proj", {"layers.{l}.attention.v"}},
      {attention + "out_proj", {"layers.{l}.attention.o"}},
      {"h.{l}.ln_2", {"layers.{l}.mlp_norm"}},
      {"h.{l}.mlp.c_fc_0", {"layers.{l}.mlp.gate"}},
      {"h.{l}.mlp.c_fc_1", {"layers.{l}.mlp.up"}},
      {"h.{l}.mlp.c_proj", {"layers.{l}.mlp.down"}},
      {"ln_f", {"final_norm"}},
  });
  names.spellings = {{"transformer.", ""}};
  return names;
}

}  // namespace

const Family exaone = {
    .name = "EXAONE",
    .type = "ExaOne",
    .model_types = {"exaone"},
    .architectures = {"ExaoneForCausalLM"},
    .decoder = exaone_decoder,
    .defaults = {{"rms_norm_eps", 1e-5}},
    .names = exaone_names(),
    .features = {"attention_bias", "mlp_bias"},
    .dropped = {"*.rotary.inv_freq", "*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
