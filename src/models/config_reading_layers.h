// Readings that several families share and that look at layers one by one, and
// the blocks of relatives.
#pragma once

#include "models/config_reading.h"

#include <string_view>

namespace mlxcel {

// The config with what the reference's class takes for keys that are not there.
// A null stays null: it means that the part is off, but for an object of
// settings, which the classes fill in then too.
Config with_defaults(const Config& config, const nlohmann::json& defaults);

// The config with these values in place of its own.
Config with_values(const Config& config, const nlohmann::json& values);

// A number that configs state once for all layers, or in a list with one a
// layer.
int layer_number(const Config& config, std::string_view key, size_t layer);

// A switch that is on unless stated, and also published as a number.
bool is_on(const Config& config, std::string_view key);

// Layers that see everything lose their rotation.
void rotate_sliding_layers(DecoderSpec& decoder);

// EXAONE's windows: layer_types, or sliding_window_pattern, which is "LLLG",
// letter by letter, or says every how manieth layer sees everything. Where
// layers slide, those that see everything do not rotate.
void slide_by_pattern(const Config& config, DecoderSpec& decoder);

// 1 for each layer that rotates: no_rope_layers, which says so despite its
// name, or all but every no_rope_layer_interval-th.
std::vector<int> rotating_layers(const Config& config, size_t num_layers);

struct RopeByType {
  double full_theta = 10000;
  double sliding_theta = 10000;
  // Where flat configs state the sliding layers' theta; empty: nowhere.
  std::string_view sliding_theta_key;
};

// A table for the layers with a window and one for the others: from nested
// rope_parameters, else from rope_theta and rope_scaling for the latter and the
// key above, unscaled, for the former.
void rotate_by_type(
    const Config& config, DecoderSpec& decoder, const RopeByType& rope);

// The block of GLM: Llama's with half of each head turned in pairs (2i, 2i+1)
// and a bias on q, k and v.
BlockSpec glm_block(const Config& config);

// use_cla: each cla_share_factor-th layer projects keys and values for itself
// and the ones up to the next.
void share_across_layers(const Config& config, DecoderSpec& decoder);

// Attention of Hunyuan: norms on each head of q and k after the rotation,
// whatever use_qk_norm says.
AttentionSpec hunyuan_attention(const Config& config);

}  // namespace mlxcel
