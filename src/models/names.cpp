#include "models/names.h"

#include "core/error.h"

#include <algorithm>
#include <charconv>

namespace mlxcel {

namespace {

constexpr std::string_view kExpert = "{e}";
// The layer, and for checkpoints that store two of ours as one, the pair's
// number and the place in it.
constexpr std::string_view kLayer = "{l}", kPair = "{l/2}", kInPair = "{l%2}";

bool has(std::string_view pattern, std::string_view place) {
  return pattern.find(place) != std::string_view::npos;
}

std::string with_number(
    std::string_view pattern, std::string_view place, int number) {
  size_t at = pattern.find(place);
  if (at == std::string_view::npos) {
    return std::string(pattern);
  }
  return cat(pattern.substr(0, at), number, pattern.substr(at + place.size()));
}

std::string with_layer(std::string_view pattern, int layer) {
  std::string out = with_number(pattern, kLayer, layer);
  out = with_number(out, kPair, layer / 2);
  return with_number(out, kInPair, layer % 2);
}

bool of_head(const NameRule& rule) {
  return rule.roles.size() == 1 && rule.roles[0] == "head";
}

}  // namespace

NameRule split_rows(std::string stem, std::vector<std::string> roles) {
  return {.stem = std::move(stem), .roles = std::move(roles)};
}

NameRule split_groups(std::string stem, std::vector<std::string> roles) {
  return {.stem = std::move(stem), .roles = std::move(roles), .grouped = true};
}

NameRule stack_split_rows(std::string stem, std::vector<std::string> roles) {
  return {.stem = std::move(stem), .roles = std::move(roles)};
}

NameRule stack_experts(std::string stem, std::string role) {
  return {.stem = std::move(stem), .roles = {std::move(role)}};
}

Role parse_role(std::string_view name) {
  Role role{.name = std::string(name), .kind = std::string(name)};
  constexpr std::string_view layers = "layers.";
  if (name.starts_with(layers)) {
    const char* begin = name.data() + layers.size();
    const char* end = name.data() + name.size();
    auto [stop, error] = std::from_chars(begin, end, role.layer);
    if (error == std::errc() && stop < end && *stop == '.') {
      role.kind = std::string(stop + 1, end);
    } else {
      role.layer = -1;
    }
  }
  return role;
}

std::pair<std::string_view, std::string_view> split_key(std::string_view key) {
  size_t dot = key.rfind('.');
  if (dot == std::string_view::npos) {
    return {key, {}};
  }
  return {key.substr(0, dot), key.substr(dot + 1)};
}

NameMap::NameMap(const FamilyNames& names, const DecoderSpec& spec)
    : spec_(spec), input_first_(names.input_first) {
  add_shapes();
  // Spellings outside, so that a role's stems are ordered by spelling first.
  for (const Spelling& spelling : names.spellings) {
    for (const NameRule& rule : names.rules) {
      std::string_view prefix = of_head(rule) ? spelling.head : spelling.body;
      bool layered = has(rule.stem, kLayer) || has(rule.stem, kPair);
      int layers = layered ? int(spec.blocks.size()) : 1;
      for (int layer = 0; layer < layers; ++layer) {
        add(rule, prefix, layer);
      }
    }
    for (const PublishedStack& stack : names.stacks) {
      for (int layer = 0; layer < int(spec.blocks.size()); ++layer) {
        auto named = [&](const std::string& stem) {
          return cat(spelling.body, with_number(stem, kLayer, layer));
        };
        PublishedStack own = stack;
        own.stem = named(stack.stem);
        std::transform(
            stack.parts.begin(), stack.parts.end(), own.parts.begin(), named);
        stacks_.push_back(std::move(own));
      }
    }
  }
}

void NameMap::add_shapes() {
  shapes_["embedding"] = {spec_.vocab_size, spec_.hidden_size, "embedding", 0};
  if (int rows = spec_.extras.positions.rows; rows > 0) {
    shapes_["positions"] = {rows, spec_.hidden_size, "positions", 0};
  }
  shapes_["head"] = {spec_.vocab_size, spec_.hidden_size, "head", 0};
  if (spec_.extras.embedding_norm &&
      spec_.extras.embedding_norm->tensors != NormTensors::none) {
    shapes_["embedding_norm"] = {spec_.hidden_size, 0, "embedding_norm", 0};
  }
  if (spec_.final_norm.tensors != NormTensors::none) {
    shapes_["final_norm"] = {spec_.hidden_size, 0, "final_norm", 0};
  }
  if (const int size = spec_.extras.per_layer.size; size > 0) {
    int64_t all = int64_t(size) * int64_t(spec_.blocks.size());
    int64_t vocab = spec_.extras.per_layer.vocab_size;
    shapes_["per_layer.table"] = {vocab, all, "per_layer.table", 0};
    shapes_["per_layer.projection"] = {
        all, spec_.hidden_size, "per_layer.projection", 0};
    shapes_["per_layer.norm"] = {size, 0, "per_layer.norm", 0};
  }
  for (int stream = 1; stream < spec_.extras.streams.count; ++stream) {
    for (const char* kind : {"streams.in.", "streams.out."}) {
      std::string role = cat(kind, stream - 1);
      shapes_[role] = {spec_.hidden_size, spec_.hidden_size, role, 0};
    }
  }
  for (size_t layer = 0; layer < spec_.blocks.size(); ++layer) {
    std::map<std::string, int64_t> filled;  // rows of each slot so far
    for (RoleShape& role : roles_of(spec_.blocks[layer], spec_.hidden_size)) {
      if (role.rows <= 0) {
        continue;
      }
      std::string prefix = cat("layers.", layer, ".");
      std::string slot = prefix + (role.slot.empty() ? role.kind : role.slot);
      int64_t& first = filled[slot];
      shapes_[prefix + role.kind] = {role.rows, role.cols, slot, first};
      first += role.rows;
    }
  }
}

void NameMap::add(const NameRule& rule, std::string_view prefix, int layer) {
  std::string stem = cat(prefix, with_layer(rule.stem, layer));
  std::vector<std::string> roles;
  for (const std::string& role : rule.roles) {
    roles.push_back(with_layer(role, layer));
  }
  if (!has(rule.roles.front(), kExpert)) {
    int groups = 1;
    if (rule.grouped) {
      groups = spec_.blocks[size_t(layer)].attention.heads.key_value;
    }
    add(std::move(stem), roles, 0, groups);
    return;
  }
  std::vector<std::string> all;
  int experts = 0;
  for (;; ++experts) {
    std::vector<std::string> one;
    for (const std::string& role : roles) {
      one.push_back(with_number(role, kExpert, experts));
    }
    if (!shapes_.contains(one.front())) {
      break;
    }
    if (has(rule.stem, kExpert)) {
      add(with_number(stem, kExpert, experts), one, 0);
    } else {
      all.insert(all.end(), one.begin(), one.end());
    }
  }
  if (!all.empty()) {
    add(std::move(stem), all, experts);
  }
}

void NameMap::add(
    std::string stem,
    const std::vector<std::string>& roles,
    int stacked,
    int groups) {
  std::vector<RolePart> parts;
  int64_t first = 0;
  for (int group = 0; group < groups; ++group) {
    for (const std::string& role : roles) {
      RolePart part{.role = parse_role(role)};
      part.first = first;
      part.count = rows(part.role) / groups;
      part.role_first = group * part.count;
      first += part.count;
      if (part.count > 0) {
        parts.push_back(std::move(part));
      }
    }
  }
  if (parts.empty()) {
    return;  // this layer has no such part
  }
  auto [entry, fresh] = by_stem_.try_emplace(std::move(stem), std::move(parts));
  if (!fresh) {
    return;  // an equal spelling: two prefixes that do not reach the head
  }
  for (const RolePart& part : entry->second) {
    by_role_[part.role.name].push_back(
        {entry->first, part.first, part.count, stacked, part.role_first});
  }
}

const NameMap::Shape& NameMap::shape(std::string_view role) const {
  static const Shape none;
  auto found = shapes_.find(role);
  return found == shapes_.end() ? none : found->second;
}

int64_t NameMap::rows(const Role& role) const {
  return shape(role.name).rows;
}

int64_t NameMap::cols(const Role& role) const {
  return shape(role.name).cols;
}

std::string NameMap::slot_of(const Role& role) const {
  return shape(role.name).slot;
}

std::vector<RolePart> NameMap::parts_of(std::string_view stem) const {
  auto found = by_stem_.find(stem);
  return found == by_stem_.end() ? std::vector<RolePart>{} : found->second;
}

std::vector<StemRows> NameMap::stems_of(std::string_view role) const {
  auto found = by_role_.find(role);
  return found == by_role_.end() ? std::vector<StemRows>{} : found->second;
}

std::vector<StemRows> NameMap::locate_all(
    std::string_view role, const WeightMap& weights) const {
  std::vector<StemRows> out;
  auto found = by_role_.find(role);
  if (found == by_role_.end()) {
    return out;
  }
  for (const StemRows& rows : found->second) {
    if (out.empty() ? weights.contains(cat(rows.stem, ".weight")) ||
                          weights.contains(rows.stem)
                    : rows.stem == out.front().stem) {
      out.push_back(rows);
    }
  }
  return out;
}

std::optional<StemRows> NameMap::locate(
    std::string_view role, const WeightMap& weights) const {
  std::vector<StemRows> all = locate_all(role, weights);
  return all.empty() ? std::nullopt : std::optional(std::move(all.front()));
}

std::vector<Target> NameMap::resolve(
    std::string_view stem, const WeightMap& weights) const {
  std::vector<Target> targets;
  auto add = [&](Target target) {
    if (!targets.empty()) {
      Target& last = targets.back();
      if (last.rows.stem == target.rows.stem && last.slot == target.slot &&
          last.rows.first + last.rows.count == target.rows.first &&
          last.named_first + last.rows.count == target.named_first &&
          last.slot_first + last.rows.count == target.slot_first) {
        last.rows.count += target.rows.count;
        return;
      }
    }
    targets.push_back(std::move(target));
  };
  for (const RolePart& part : parts_of(stem)) {
    std::vector<StemRows> runs = locate_all(part.role.name, weights);
    if (runs.empty()) {
      return {};
    }
    const Shape& shape = this->shape(part.role.name);
    // The part's rows may lie in other runs there, whole or cut.
    for (const StemRows& run : runs) {
      int64_t begin = std::max(run.role_first, part.role_first);
      int64_t end =
          std::min(run.role_first + run.count, part.role_first + part.count);
      if (begin < end) {
        Target target{
            .rows = run,
            .named_first = part.first + begin - part.role_first,
            .slot = shape.slot,
            .slot_first = shape.slot_first + begin};
        target.rows.first += begin - run.role_first;
        target.rows.count = end - begin;
        target.rows.role_first = begin;
        add(std::move(target));
      }
    }
  }
  return targets;
}

bool NameMap::is_input_first(std::string_view stem) const {
  auto found = by_stem_.find(stem);
  return found != by_stem_.end() &&
         std::find(
             input_first_.begin(),
             input_first_.end(),
             found->second.front().role.kind) != input_first_.end();
}

std::vector<std::string> NameMap::known_stems() const {
  std::vector<std::string> stems;
  stems.reserve(by_stem_.size());
  for (const auto& [stem, parts] : by_stem_) {
    stems.push_back(stem);
  }
  return stems;
}

FamilyNames gpt2_names(NameRule qkv) {
  FamilyNames names = hf_decoder_names({
      {"wte", {"embedding"}},
      {"wpe", {"positions"}},
      {"h.{l}.ln_1", {"layers.{l}.attention_norm"}},
      std::move(qkv),
      {"h.{l}.attn.c_proj", {"layers.{l}.attention.o"}},
      {"h.{l}.ln_2", {"layers.{l}.mlp_norm"}},
      {"h.{l}.mlp.c_fc", {"layers.{l}.mlp.up"}},
      {"h.{l}.mlp.c_proj", {"layers.{l}.mlp.down"}},
      {"ln_f", {"final_norm"}},
  });
  names.spellings = {{"transformer.", ""}, {"", ""}, {"model.", ""}};
  return names;
}

NameRule fused_gate_up(std::string stem) {
  return split_rows(
      std::move(stem), {"layers.{l}.mlp.gate", "layers.{l}.mlp.up"});
}

FamilyNames wrapped(FamilyNames names) {
  names.spellings.insert(
      names.spellings.begin(),
      {{"language_model.model.", "language_model."},
       {"model.language_model.", ""},
       {"language_model.", ""}});
  return names;
}

std::vector<NameRule> moe_names(
    const std::string& block, const ExpertStems& stems) {
  std::vector<NameRule> rules = {
      {cat(block, ".gate"), {"layers.{l}.moe.router"}}};
  for (const auto& [part, stem] :
       {std::pair<std::string, std::string>{"gate", stems.gate},
        {"up", stems.up},
        {"down", stems.down}}) {
    std::string role = cat("layers.{l}.moe.experts.{e}.", part);
    rules.push_back(
        stack_experts(cat(block, ".switch_mlp.", part, "_proj"), role));
    rules.push_back({cat(block, ".experts.{e}.", stem), {role}});
  }
  return rules;
}

FamilyNames hf_decoder_names(const std::vector<NameRule>& changes) {
  const std::vector<NameRule> defaults = {
      {"embed_tokens", {"embedding"}},
      {"layers.{l}.input_layernorm", {"layers.{l}.attention_norm"}},
      {"layers.{l}.self_attn.q_proj", {"layers.{l}.attention.q"}},
      {"layers.{l}.self_attn.k_proj", {"layers.{l}.attention.k"}},
      {"layers.{l}.self_attn.v_proj", {"layers.{l}.attention.v"}},
      {"layers.{l}.self_attn.q_norm", {"layers.{l}.attention.q_norm"}},
      {"layers.{l}.self_attn.k_norm", {"layers.{l}.attention.k_norm"}},
      {"layers.{l}.self_attn.o_proj", {"layers.{l}.attention.o"}},
      {"layers.{l}.post_attention_layernorm", {"layers.{l}.mlp_norm"}},
      {"layers.{l}.mlp.gate_proj", {"layers.{l}.mlp.gate"}},
      {"layers.{l}.mlp.up_proj", {"layers.{l}.mlp.up"}},
      {"layers.{l}.mlp.down_proj", {"layers.{l}.mlp.down"}},
      {"norm", {"final_norm"}},
      {"lm_head", {"head"}},
  };
  FamilyNames names;
  names.spellings = {{"model.", ""}, {"", ""}};
  names.rules = changes;
  for (const NameRule& rule : defaults) {
    bool replaced = std::any_of(
        changes.begin(), changes.end(), [&](const NameRule& change) {
          return change.stem == rule.stem || change.roles == rule.roles;
        });
    if (!replaced) {
      names.rules.push_back(rule);
    }
  }
  return names;
}

}  // namespace mlxcel
