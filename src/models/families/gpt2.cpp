// GPT-2: layer norms, biases everywhere, learned positions, a plain MLP. As
// published the projections are stored input first.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec gpt2_decoder(const Config& published) {
  Config config = gpt2_config(published);
  DecoderSpec decoder = gpt2_like_decoder(config, "gelu_new");
  if (config.get_or("scale_attn_by_inverse_layer_idx", false)) {
    for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
      decoder.blocks[layer].attention.scale /= float(layer + 1);
    }
  }
  return decoder;
}

FamilyNames gpt2_input_first_names() {
  FamilyNames names = gpt2_names(split_rows(
      "h.{l}.attn.c_attn",
      {"layers.{l}.attention.q",
       "layers.{l}.attention.k",
       "layers.{l}.attention.v"}));
  names.input_first = {"attention.q", "attention.o", "mlp.up", "mlp.down"};
  return names;
}

}  // namespace

const Family gpt2 = {
    .name = "GPT-2",
    .type = "Gpt2",
    .model_types = {"gpt2"},
    .architectures = {"GPT2LMHeadModel"},
    .decoder = gpt2_decoder,
    .names = gpt2_input_first_names(),
    .dropped = {"*h.*.attn.bias", "*h.*.attn.masked_bias"},
};

}  // namespace mlxcel
