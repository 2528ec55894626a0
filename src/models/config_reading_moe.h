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

// The mixture of DeepSeek 3 behind the dense layers of equal blocks, with norms
// on each head of q and k where use_qk_norm says so.
DecoderSpec deepseek3_decoder(const Config& config, BlockSpec block);

// The spelling of Mixtral: num_local_experts, num_experts_per_tok, experts of
// the MLP's size and activation, renormalized shares.
MoeSpec local_experts_moe(const Config& config, const MlpSpec& mlp);
// Granite's: moe_names under block_sparse_moe, and as published.
std::vector<NameRule> granite_moe_names();

// An expert for every row of shared_expert_intermediate_size, under a sigmoid
// gate.
void add_shared_expert(const Config& config, MoeSpec& moe);

// The expert for every row under `<block>.shared_expert` and its gate
// `<block>.shared_expert_gate`, as the Qwen mixtures write them.
std::vector<NameRule> shared_expert_names(const std::string& block);

// moe_names, the shared experts under `shared` and the selection bias.
std::vector<NameRule> deepseek_moe_names(
    const std::string& block = "layers.{l}.mlp",
    const std::string& shared = "shared_experts");

// The names of Hunyuan's attention and mixture.
std::vector<NameRule> hunyuan_moe_names();

}  // namespace mlxcel
