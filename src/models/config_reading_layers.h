// Readings that several families share and that look at layers one by one, and
// the blocks of relatives.
#pragma once

#include "models/config_reading.h"

#include <string_view>

namespace mlxcel {

// The config with what the reference's class takes for keys that are not there.
// A null stays null: it means that the part is off.
Config with_defaults(const Config& config, const nlohmann::json& defaults);

// The config with these values in place of its own.
Config with_values(const Config& config, const nlohmann::json& values);

// Layers that see everything lose their rotation.
void rotate_sliding_layers(DecoderSpec& decoder);

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

// Attention of Hunyuan: norms on each head of q and k after the rotation,
// unless use_qk_norm is false.
AttentionSpec hunyuan_attention(const Config& config);

}  // namespace mlxcel
