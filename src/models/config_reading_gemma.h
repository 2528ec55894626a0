// Readings that the later Gemmas share, and the parts of their blocks.
#pragma once

#include "models/config_reading_layers.h"
#include "models/names.h"

namespace mlxcel {

// The last `count` layers take keys and values from the last layer before them
// of the same window or lack of one. Throws ConfigError when there is none.
void share_with_last(const Config& config, DecoderSpec& decoder, int count);

// The block of Gemma 2 and 3: norms with weight + 1 on both sides of each half,
// scores over sqrt(query_pre_attn_scalar).
BlockSpec gemma_block(const Config& config);

// Gemma's decoder of equal blocks: the embedding times sqrt(hidden_size), a
// tied head, and a soft cap that is `softcap` unless stated.
DecoderSpec gemma_decoder_of(
    const Config& config, const BlockSpec& block, float softcap);

// Gemma 3's rotations: rope_theta, and rope_local_base_freq where layers slide.
void gemma3_rotation(const Config& config, DecoderSpec& decoder);

// The attention of Gemma 3n and 4: norms on queries, keys and values, and
// scores without a scale.
AttentionSpec unscaled_attention(const Config& config);

// The names of Gemma's four norms a block.
std::vector<NameRule> gemma_norm_names();

// The names of Gemma's per-layer inputs.
std::vector<NameRule> per_layer_names();

// Gemma 4's names, the mixtures' too.
FamilyNames gemma4_names();

// Gemma 4's windows, heads, rotations and shared keys.
void gemma4_attention(const Config& config, DecoderSpec& decoder);

// Gemma 4's second halves: layers that share keys may have twice the width, all
// may have experts beside the MLP.
void gemma4_feed_forward(const Config& config, DecoderSpec& decoder);

// Gemma 3n's blocks in place of the decoder's own.
void make_altup_blocks(const Config& config, DecoderSpec& decoder);

}  // namespace mlxcel
