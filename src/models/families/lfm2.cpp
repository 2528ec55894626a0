// LFM2: short gated convolutions, with attention in some layers.
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"
#include "models/families/lfm2_parts.h"

#include <algorithm>
#include <numeric>

namespace mlxcel {

namespace {

// Lfm2MLP: the width follows from the stated one by three adjustments.
int lfm2_width(const Config& config) {
  int width = config.has("block_ff_dim") ? config.get<int>("block_ff_dim")
                                         : config.get<int>("intermediate_size");
  if (!config.get_or("block_auto_adjust_ff_dim", true)) {
    return width;
  }
  int64_t adjusted = int64_t(2) * width / 3;
  if (!config.json().contains("block_ffn_dim_multiplier") ||
      config.has("block_ffn_dim_multiplier")) {
    adjusted = int64_t(
        config.get_or("block_ffn_dim_multiplier", 1.0) * double(adjusted));
    int64_t unit =
        std::max<int64_t>(1, config.get_or<int64_t>("block_multiple_of", 256));
    adjusted = (adjusted + unit - 1) / unit * unit;
  }
  return int(adjusted);
}

DecoderSpec lfm2_decoder(const Config& config) {
  DecoderSpec decoder = lfm2_layers(config);
  for (BlockSpec& block : decoder.blocks) {
    block.mlp.intermediate_size = lfm2_width(config);
  }
  return decoder;
}

}  // namespace

DecoderSpec lfm2_layers(const Config& config) {
  BlockSpec block{
      .norm = {.eps = config.get_or("norm_eps", 1e-5f)},
      .attention = grouped_query_attention(config, {.theta = 1e6})};
  block.attention.qk_norm = QkNorm::per_head;
  block.attention.bias = AttentionBias::none;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  if (config.has("tie_embedding")) {
    decoder.head =
        config.get<bool>("tie_embedding") ? HeadKind::tied : HeadKind::own;
  }
  auto mixer = std::make_shared<GatedConvolutionSpec>();
  mixer->taps = config.get_or("conv_L_cache", 3);
  mixer->width = decoder.hidden_size;
  mixer->bias = config.get_or("conv_bias", false);

  std::vector<int> full(decoder.blocks.size());
  std::iota(full.begin(), full.end(), 0);
  full = config.get_or("full_attn_idxs", full);
  std::vector<std::string> fallback(decoder.blocks.size(), "conv");
  for (int layer : full) {
    if (layer >= 0 && size_t(layer) < fallback.size()) {
      fallback[size_t(layer)] = "full_attention";
    }
  }
  auto kinds = layer_kinds(
      config, decoder.blocks.size(), {"full_attention", "conv"}, fallback);
  for (size_t layer = 0; layer < kinds.size(); ++layer) {
    if (kinds[layer] == "conv") {
      decoder.blocks[layer].mixer = mixer;
    }
  }
  return decoder;
}

std::vector<NameRule> lfm2_block_names() {
  return {
      {"embedding_norm", {"final_norm"}},
      {"layers.{l}.operator_norm", {"layers.{l}.attention_norm"}},
      {"layers.{l}.ffn_norm", {"layers.{l}.mlp_norm"}},
      {"layers.{l}.self_attn.out_proj", {"layers.{l}.attention.o"}},
      {"layers.{l}.self_attn.q_layernorm", {"layers.{l}.attention.q_norm"}},
      {"layers.{l}.self_attn.k_layernorm", {"layers.{l}.attention.k_norm"}},
      {"layers.{l}.conv.in_proj", {"layers.{l}.convolution.in"}},
      {"layers.{l}.conv.conv", {"layers.{l}.convolution.taps"}},
      {"layers.{l}.conv.conv.bias", {"layers.{l}.convolution.taps_bias"}},
      {"layers.{l}.conv.out_proj", {"layers.{l}.convolution.out"}},
      {"layers.{l}.feed_forward.w1", {"layers.{l}.mlp.gate"}},
      {"layers.{l}.feed_forward.w3", {"layers.{l}.mlp.up"}},
      {"layers.{l}.feed_forward.w2", {"layers.{l}.mlp.down"}}};
}

const Family lfm2 = {
    .name = "LFM2",
    .type = "Lfm2",
    .model_types = {"lfm2"},
    .architectures = {"Lfm2ForCausalLM"},
    .decoder = lfm2_decoder,
    .names = hf_decoder_names(lfm2_block_names()),
    .features = {"layer_types"},
};

}  // namespace mlxcel
