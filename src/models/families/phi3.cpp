// Phi 3 and 3.5, Phi 4: Llama with q, k, v and gate, up stored as one tensor
// each, partial rotation, longrope, one window over all layers.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec phi3_decoder(const Config& config) {
  DecoderSpec decoder =
      uniform_decoder(config, gated_block(config), HeadKind::own);
  slide_all_layers(config, decoder);
  return decoder;
}

}  // namespace

const Family phi3 = {
    .name = "Phi 3",
    .type = "Phi3",
    .model_types = {"phi3"},
    .architectures = {"Phi3ForCausalLM"},
    .decoder = phi3_decoder,
    .defaults = {{"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names({
        split_rows(
            "layers.{l}.self_attn.qkv_proj",
            {"layers.{l}.attention.q",
             "layers.{l}.attention.k",
             "layers.{l}.attention.v"}),
        fused_gate_up("layers.{l}.mlp.gate_up_proj"),
    }),
    .features = {"partial_rotary_factor", "sliding_window"},
};

}  // namespace mlxcel
