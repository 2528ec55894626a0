// Readings that families with latent attention share.
#pragma once

#include "models/config_reading.h"
#include "models/family.h"
#include "models/latent_attention.h"

#include <string_view>
#include <vector>

namespace mlxcel {

// The spelling of DeepSeek 2: kv_lora_rank, q_lora_rank (null: queries come
// from the hidden row), qk_nope_head_dim, qk_rope_head_dim, v_head_dim,
// attention_bias; a table for qk_rope_head_dim, yarn's mscale_all_dim squared
// in the scale. Norms have the eps 1e-6, whatever rms_norm_eps says.
LatentAttentionSpec latent_attention(
    const Config& config, const RopeDefaults& rope);

// Llama's block with latent attention in place of its own.
BlockSpec latent_block(const Config& config, const LatentAttentionSpec& spec);

// DeepSeek 3's decoder without its mixtures; refuses the routing of others.
// Latent blocks, rotated in pairs (2i, 2i+1) unless rope_interleave is false.
DecoderSpec deepseek3_latent_decoder(const Config& config);

// The names of DeepSeek 2 and 3: latent attention and experts.
std::vector<NameRule> deepseek_latent_names();

// What the published classes of DeepSeek 2 and 3 take for missing keys, with
// what differs between them.
Config with_deepseek_defaults(
    const Config& config, const nlohmann::json& others);

// What the rows of DeepSeek 2 and of its heirs have in common: names, features
// and dropped tensors; further layers are those of DeepSeek 3.
Family deepseek2_family(Family family);
Family deepseek3_family(Family family);

// Throws ConfigError where `key` is there and not `value`: the published code
// knows another, which this family's formula does not have.
void require_value(
    const Config& config, std::string_view key, std::string_view value);

}  // namespace mlxcel
