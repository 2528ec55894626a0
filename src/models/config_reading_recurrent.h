// Parts of recurrent and hybrid decoders that several configs spell alike.
#pragma once

#include "models/config_reading.h"
#include "models/gated_delta.h"
#include "models/mamba.h"
#include "models/names.h"
#include "models/state_space.h"

#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

// layer_types, one of `known` for each layer. Throws ConfigError for others and
// for another length; `fallback` where the config has none.
std::vector<std::string> layer_kinds(
    const Config& config,
    size_t layers,
    const std::vector<std::string>& known,
    std::vector<std::string> fallback = {});

// layer_types of full_attention and linear_attention; where the config has
// none, the last of every `interval` layers is full.
std::vector<std::string> linear_or_full(
    const Config& config, size_t layers, int interval);

// One letter a layer, from hybrid_override_pattern (a string or a list) or from
// the names in layers_block_type or layer_types: M a Mamba mixer, * attention,
// - an MLP, E a mixture of experts. Throws ConfigError for other letters or
// names, and where num_hidden_layers is there and differs.
std::string layer_letters(const Config& config);

// The recurrences apply silu; throws ConfigError where `key` names another
// activation.
void require_silu(const Config& config, std::string_view key);

// A layer that is one mixer, or one feed-forward part, behind a norm.
BlockSpec mixer_block(
    const NormSpec& norm, std::shared_ptr<const PartSpec> mixer);

// Mamba's mixer where the config names its sizes as the first Mamba did
// (state_size, conv_kernel, time_step_rank, intermediate_size or expand).
std::shared_ptr<MambaSpec> mamba_mixer(const Config& config);

// The keys of a Mamba 2 mixer's sizes.
struct StateSpaceKeys {
  std::string_view heads = "mamba_n_heads";
  std::string_view head_dim = "mamba_d_head";
  std::string_view groups = "mamba_n_groups";
  std::string_view state_size = "mamba_d_state";
  std::string_view taps = "mamba_d_conv";
  std::string_view convolution_bias = "mamba_conv_bias";
};

// With the gated norm by group, and no biases on the projections.
std::shared_ptr<StateSpaceSpec> state_space_mixer(
    const Config& config, const StateSpaceKeys& keys, float norm_eps);

// linear_num_key_heads and so on, as Qwen 3 Next and OLMo Hybrid spell them.
std::shared_ptr<GatedDeltaSpec> gated_delta_mixer(const Config& config);

// The names of the pure Mambas around those of the mixer.
FamilyNames backbone_names(const std::vector<NameRule>& mixer);

// Names below `block` ("layers.{l}.mixer").
std::vector<NameRule> mamba_mixer_names(const std::string& block);
std::vector<NameRule> state_space_names(const std::string& block);
// What all gated delta mixers share: a_log, dt_bias, the convolution.
std::vector<NameRule> gated_delta_names(const std::string& block);

std::vector<NameRule> join(std::vector<std::vector<NameRule>> lists);

}  // namespace mlxcel
