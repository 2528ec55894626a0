// Parts of a decoder spec that most configs spell the same way. A family's file
// starts from these and changes what differs.
#pragma once

#include "io/config.h"
#include "models/rope.h"
#include "models/spec.h"

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mlxcel {

// The config with values under `first`s also found under `second`, for configs
// that spell the usual sizes otherwise; a usual name that is there stays.
using KeyNames = std::vector<std::pair<std::string, std::string>>;
Config renamed(const Config& config, const KeyNames& names);

// The same, but a value under a `first` replaces one under the usual name.
Config overridden(const Config& config, const KeyNames& names);

// Products of two sizes up to this stay far from overflow; larger ones are
// damage.
inline constexpr int kMaxSize = 1 << 26;

// A size of the model. Throws ConfigError that names the key unless it is from
// 1 to kMaxSize.
int positive_size(const Config& config, std::string_view key);

// A switch as published Python classes test it: null is off; a missing key is
// the class's default.
bool is_set(const Config& config, std::string_view key, bool missing);

// GPT-2's names of the usual sizes.
Config gpt2_config(const Config& config);

// Layer norms, biases everywhere, learned positions and a plain MLP, from a
// config that gpt2_config() renamed.
DecoderSpec gpt2_like_decoder(
    const Config& config, std::string_view default_activation);

// Layer norm with the eps under `key`, or the fallback.
NormSpec layer_norm(
    const Config& config,
    std::string_view key,
    float fallback = 1e-5f,
    NormTensors tensors = NormTensors::usual);

// act(up), intermediate_size features and biases.
MlpSpec plain_mlp(
    const Config& config,
    std::string_view act_key,
    std::string_view default_activation,
    MlpBias bias);

// Key/value heads default to the query heads, the head size to hidden_size over
// the heads.
HeadCounts head_counts(const Config& config);

// Grouped-query attention with rotary positions and scale 1 / sqrt(head_dim);
// attention_bias gives all four projections a bias.
AttentionSpec grouped_query_attention(
    const Config& config, const RopeDefaults& rope = {});

// The activation that `key` names, or `fallback`, what the published class
// takes without the key. Throws ConfigError that lists the known names.
Activation activation_from_name(
    const Config& config, std::string_view key, std::string_view fallback);

// act(gate) * up with intermediate_size and the activation named by `act_key`;
// mlp_bias gives all three projections a bias.
MlpSpec gated_mlp(
    const Config& config,
    std::string_view act_key = "hidden_act",
    std::string_view default_activation = "silu");

// The spelling of Qwen's mixtures: num_experts, num_experts_per_tok,
// norm_topk_prob and the size of an expert under `size_key`, activation
// hidden_act, no shared expert.
MoeSpec softmax_moe(const Config& config, std::string_view size_key);

// Puts the mixture in place of the MLP, in all layers but those of
// mlp_only_layers and those that decoder_sparse_step passes over.
void mix_layers(const Config& config, DecoderSpec& decoder, const MoeSpec& moe);

// Root-mean-square norm with rms_norm_eps.
NormSpec rms_norm(const Config& config);

// The block of Llama: a norm before attention and before a gated MLP.
BlockSpec gated_block(const Config& config, const RopeDefaults& rope = {});

// Of q, k and v, and of the output projection.
AttentionBias attention_bias(bool inputs, bool output);

// Gives all projections of attention and MLP a bias where `key` is true.
void bias_everywhere(
    const Config& config, std::string_view key, BlockSpec& block);

// Granite's block: Llama's with attention_multiplier on the scores.
BlockSpec granite_block(const Config& config);

// Granite's other multipliers: embedding_multiplier, residual_multiplier and
// the divisor logits_scaling.
void scale_as_granite(const Config& config, DecoderSpec& decoder);

// The switches that these read, and others.
std::vector<std::string_view> granite_features(
    std::vector<std::string_view> others);

// num_hidden_layers equal blocks, final norm, sizes and head as the config has
// them.
DecoderSpec uniform_decoder(
    const Config& config, const BlockSpec& block, HeadKind default_head);

// Gives sliding_window to the layers that layer_types names, or, without
// layer_types, to those for which `slides(layer)` holds. Throws when a layer
// slides and the config states no window.
void slide_layers(
    const Config& config,
    DecoderSpec& decoder,
    const std::function<bool(int layer)>& slides);

// sliding_window for all layers, unless it is null or layer_types says
// otherwise.
void slide_all_layers(const Config& config, DecoderSpec& decoder);

// sliding_window for the layers from max_window_layers on, when
// use_sliding_window is true: the rule of Qwen 2 and 3.
void slide_upper_layers(const Config& config, DecoderSpec& decoder);

// A number where null means that the feature is off (0), and a missing key
// means the family's default.
float number_or_off(const Config& config, std::string_view key, float fallback);

// The cap c of c * tanh(x / c): 0, which is none, for null, and `fallback` for
// a missing key. Throws ConfigError for 0 and below: the references divide by
// it.
float soft_cap(const Config& config, std::string_view key, float fallback);

}  // namespace mlxcel
