// Readings that families with a mixture of experts share.
#pragma once

#include "models/config_reading.h"
#include "models/names.h"

namespace mlxcel {

// The spelling of DeepSeek: n_routed_experts (or num_experts),
// num_experts_per_tok, moe_intermediate_size, n_shared_experts (or
// num_shared_experts) of the same size in one, n_group, topk_group,
// norm_topk_prob, routed_scaling_factor.
MoeSpec deepseek_moe(const Config& config);

// The same with sigmoid scores, a stored selection bias and groups by their two
// best: the routing of DeepSeek 3.
MoeSpec deepseek3_moe(const Config& config);

// The mixture in place of the MLP from layer first_k_dense_replace on, every
// moe_layer_freq layers.
void mix_after_dense(
    const Config& config, DecoderSpec& decoder, const MoeSpec& moe);

// The mixture in the layers that mlp_layer_types calls "sparse"; without the
// list as above.
void mix_by_type(
    const Config& config, DecoderSpec& decoder, const MoeSpec& moe);

// moe_names, the shared experts under `shared` and the selection bias.
std::vector<NameRule> deepseek_moe_names(
    const std::string& block = "layers.{l}.mlp",
    const std::string& shared = "shared_experts");

}  // namespace mlxcel
