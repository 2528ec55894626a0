// Baichuan M1: keys and values pass a convolution of two tokens; windows in
// some layers, which may have other head counts.
#include "models/config_reading.h"
#include "models/families/families.h"
#include "models/wrapped_parts.h"

#include <algorithm>
#include <cmath>

namespace mlxcel {

namespace {

DecoderSpec baichuan_m1_decoder(const Config& config) {
  BlockSpec block{.norm = rms_norm(config), .mlp = gated_mlp(config)};
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  decoder.extras.head.rows = HeadRows::normalized;
  auto windowed = config.get_or("sliding_window_layers", std::vector<int>());
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    auto mixer = std::make_shared<ConvolvedAttentionSpec>();
    AttentionSpec& attention = mixer->attention;
    attention = grouped_query_attention(config);
    bool slides = std::find(windowed.begin(), windowed.end(), int(layer)) !=
                  windowed.end();
    if (slides) {
      HeadCounts& heads = attention.heads;
      heads.query = config.get_or("num_swa_attention_heads", heads.query);
      heads.key_value =
          config.get_or("num_swa_key_value_heads", heads.key_value);
      heads.dim = heads.query > 0 ? decoder.hidden_size / heads.query : 0;
      attention.scale = 1 / std::sqrt(float(heads.dim));
      attention.rope = rope_table(config, heads.dim);
      attention.window = config.get<int64_t>("sliding_window");
    }
    mixer->taps = config.get_or("conv_window", 2);
    decoder.blocks[layer].mixer = mixer;
  }
  return decoder;
}

}  // namespace

const Family baichuan_m1 = {
    .name = "Baichuan M1",
    .type = "BaichuanM1",
    .model_types = {"baichuan_m1"},
    .architectures = {"BaichuanM1ForCausalLM"},
    .decoder = baichuan_m1_decoder,
    .names = hf_decoder_names(
        {split_rows(
             "layers.{l}.self_attn.W_pack",
             {"layers.{l}.attention.q",
              "layers.{l}.attention.k",
              "layers.{l}.attention.v"}),
         {"layers.{l}.self_attn.conv_k", {"layers.{l}.attention.conv_k"}},
         {"layers.{l}.self_attn.conv_v", {"layers.{l}.attention.conv_v"}}}),
    .features = {"sliding_window"},
};

}  // namespace mlxcel
