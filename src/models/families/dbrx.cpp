// DBRX: layer norms without biases, limited q, k and v in one projection, and
// a mixture in every layer.
#include "core/error.h"
#include "models/config_reading_layers.h"
#include "models/families/families.h"

#include <optional>

namespace mlxcel {

namespace {

Config dbrx_part(const Config& config, const char* key) {
  std::optional<Config> part = config.find_sub(key);
  return part ? *part : Config(nlohmann::json::object(), config.file());
}

// The usual names of the sizes, with the attention's own config at the top.
Config dbrx_config(const Config& given) {
  Config config = renamed(
      given,
      {{"d_model", "hidden_size"},
       {"n_heads", "num_attention_heads"},
       {"n_layers", "num_hidden_layers"},
       {"max_seq_len", "max_position_embeddings"}});
  Config attention = dbrx_part(given, "attn_config");
  nlohmann::json values = {
      {"num_key_value_heads", attention.get_or("kv_n_heads", 1)},
      {"clip_qkv", number_or_off(attention, "clip_qkv", 0)}};
  if (attention.has("rope_theta")) {
    values["rope_theta"] = attention.get<double>("rope_theta");
  }
  return with_values(config, values);
}

MoeSpec dbrx_moe(const Config& given) {
  Config config = dbrx_part(given, "ffn_config");
  Config activation = dbrx_part(config, "ffn_act_fn");
  MoeSpec moe{
      .experts = config.get_or("moe_num_experts", 4),
      .experts_per_token = config.get_or("moe_top_k", 1),
      .expert = {
          .intermediate_size = config.get_or("ffn_hidden_size", 3584),
          .activation = activation_from_name(activation, "name", "silu")}};
  constexpr const char* kNorm = "moe_normalize_expert_weights";
  float norm = number_or_off(config, kNorm, 1);
  if (norm != 0 && norm != 1) {
    throw ConfigError(
        cat(config.file(), ": \"", kNorm, "\" is not supported"),
        cat("its value ", norm, " asks for a norm other than the sum"),
        "published models have 1 or null");
  }
  if (norm == 1) {
    moe.routing.shares = Shares::renormalized;
  }
  return moe;
}

DecoderSpec dbrx_decoder(const Config& given) {
  Config config = dbrx_config(given);
  BlockSpec block{
      .norm = layer_norm(config, "layer_norm_eps", 1e-5f, NormTensors::weight),
      .attention = grouped_query_attention(config),
      .moe = dbrx_moe(given)};
  block.attention.extras.clip = config.get<float>("clip_qkv");
  return uniform_decoder(config, block, HeadKind::own);
}

FamilyNames dbrx_names() {
  const std::string attention = "blocks.{l}.norm_attn_norm.";
  const std::string experts = "blocks.{l}.ffn.experts.";
  std::vector<NameRule> rules = {
      {"wte", {"embedding"}},
      {attention + "norm_1", {"layers.{l}.attention_norm"}},
      split_rows(
          attention + "attn.Wqkv",
          {"layers.{l}.attention.q",
           "layers.{l}.attention.k",
           "layers.{l}.attention.v"}),
      {attention + "attn.out_proj", {"layers.{l}.attention.o"}},
      {attention + "norm_2", {"layers.{l}.mlp_norm"}},
      {"blocks.{l}.ffn.router.layer", {"layers.{l}.moe.router"}},
      {"norm_f", {"final_norm"}}};
  std::vector<PublishedStack> stacks;
  for (const auto& [stem, part] :
       {std::pair<std::string, std::string>{"w1", "gate"},
        {"v1", "up"},
        {"w2", "down"}}) {
    const std::string role = cat("layers.{l}.moe.experts.{e}.", part);
    rules.push_back({cat(experts, "{e}.", stem), {role}});
    rules.push_back(stack_experts(cat(experts, "mlp.", stem), role));
    stacks.push_back(
        {.stem = cat(experts, "mlp.", stem),
         .parts = {cat(experts, "mlp.", stem)},
         .input_first = stem == "w2"});
  }
  FamilyNames names = hf_decoder_names(rules);
  names.spellings = {{"transformer.", ""}, {"", ""}};
  names.stacks = std::move(stacks);
  return names;
}

}  // namespace

const Family dbrx = {
    .name = "DBRX",
    .type = "Dbrx",
    .model_types = {"dbrx"},
    .architectures = {"DbrxForCausalLM"},
    .decoder = dbrx_decoder,
    .names = dbrx_names(),
};

}  // namespace mlxcel
