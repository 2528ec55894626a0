#include "models/names.h"

#include "core/error.h"

#include <algorithm>
#include <charconv>

namespace mlxcel {

namespace {

constexpr std::string_view kLayer = "{l}";
constexpr std::string_view kExpert = "{e}";

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

bool of_head(const NameRule& rule) {
  return rule.roles.size() == 1 && rule.roles[0] == "head";
}

int64_t norm_rows(bool present, int64_t size) {
  return present ? size : 0;
}

// "moe.experts.3.gate" -> "gate" when there is an expert 3, else empty.
std::string_view part_of_expert(const MoeSpec& moe, std::string_view kind) {
  constexpr std::string_view experts = "moe.experts.";
  if (!kind.starts_with(experts)) {
    return {};
  }
  int expert = -1;
  const char* end = kind.data() + kind.size();
  auto [stop, error] =
      std::from_chars(kind.data() + experts.size(), end, expert);
  bool known = error == std::errc() && stop < end && *stop == '.' &&
               expert >= 0 && expert < moe.experts;
  return known ? std::string_view(stop + 1, end) : std::string_view();
}

// Rows and columns of a role of the mixture; {0, 0} for others.
std::pair<int64_t, int64_t> moe_shape(
    const MoeSpec& moe, int64_t hidden, std::string_view kind) {
  constexpr std::string_view shared = "moe.shared.";
  int64_t inner = moe.intermediate_size;
  std::string_view part = part_of_expert(moe, kind);
  if (kind.starts_with(shared)) {
    inner = moe.shared_intermediate_size;
    part = kind.substr(shared.size());
  }
  if (inner > 0 && (part == "gate" || part == "up")) {
    return {inner, hidden};
  } else if (inner > 0 && part == "down") {
    return {hidden, inner};
  } else if (kind == "moe.router") {
    return {moe.experts, hidden};
  } else if (kind == "moe.shared_gate" && moe.shared_intermediate_size > 0) {
    return {1, hidden};
  }
  return {0, 0};
}

int64_t block_rows(
    const BlockSpec& block, int64_t hidden, std::string_view kind) {
  const HeadCounts& heads = block.attention.heads;
  const QkNorm qk_norm = block.attention.qk_norm;
  const int64_t q = int64_t(heads.query) * heads.dim;
  const int64_t kv = int64_t(heads.key_value) * heads.dim;
  const bool pre = block.norms != NormPlacement::post;
  const bool post = block.norms != NormPlacement::pre;
  if (kind == "attention.q") {
    return q;
  } else if (kind == "attention.k" || kind == "attention.v") {
    return kv;
  } else if (kind == "attention.q_norm" || kind == "attention.k_norm") {
    int64_t whole = kind == "attention.q_norm" ? q : kv;
    return norm_rows(
        qk_norm != QkNorm::none,
        qk_norm == QkNorm::per_head ? heads.dim : whole);
  } else if (kind == "attention_norm" || kind == "mlp_norm") {
    return norm_rows(pre, hidden);
  } else if (kind == "attention_post_norm" || kind == "mlp_post_norm") {
    return norm_rows(post, hidden);
  } else if (kind == "attention.o") {
    return hidden;
  } else if (block.moe) {
    return moe_shape(*block.moe, hidden, kind).first;
  } else if (kind == "mlp.gate") {
    return block.mlp.kind == MlpKind::gated ? block.mlp.intermediate_size : 0;
  } else if (kind == "mlp.up") {
    return block.mlp.intermediate_size;
  } else if (kind == "mlp.down") {
    return hidden;
  }
  return 0;
}

int64_t block_cols(
    const BlockSpec& block, int64_t hidden, std::string_view kind) {
  if (kind == "attention.o") {
    const HeadCounts& heads = block.attention.heads;
    return int64_t(heads.query) * heads.dim;
  } else if (
      kind == "attention.q" || kind == "attention.k" || kind == "attention.v") {
    return hidden;
  } else if (block.moe) {
    return moe_shape(*block.moe, hidden, kind).second;
  } else if (kind == "mlp.down") {
    return block.mlp.intermediate_size;
  } else if (kind == "mlp.gate" || kind == "mlp.up") {
    return hidden;
  }
  return 0;
}

// Rows of the slot that stand before the role's own.
int64_t slot_offset(const NameMap& names, const Role& role) {
  auto rows_of = [&](std::string_view kind) {
    return names.rows(parse_role(cat("layers.", role.layer, ".", kind)));
  };
  if (role.kind == "attention.k") {
    return rows_of("attention.q");
  } else if (role.kind == "attention.v") {
    return rows_of("attention.q") + rows_of("attention.k");
  } else if (role.kind == "mlp.up") {
    return rows_of("mlp.gate");
  } else if (role.kind == "moe.shared.up") {
    return rows_of("moe.shared.gate");
  }
  return 0;
}

}  // namespace

NameRule split_rows(std::string stem, std::vector<std::string> roles) {
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

std::string linear_slot(const Role& role) {
  if (role.kind == "attention.q" || role.kind == "attention.k" ||
      role.kind == "attention.v") {
    return cat("layers.", role.layer, ".attention.qkv");
  }
  if (role.kind == "mlp.gate" || role.kind == "mlp.up") {
    return cat("layers.", role.layer, ".mlp.up");
  }
  if (role.kind == "moe.shared.gate" || role.kind == "moe.shared.up") {
    return cat("layers.", role.layer, ".moe.shared.up");
  }
  return role.name;
}

std::pair<std::string_view, std::string_view> split_key(std::string_view key) {
  size_t dot = key.rfind('.');
  if (dot == std::string_view::npos) {
    return {key, {}};
  }
  return {key.substr(0, dot), key.substr(dot + 1)};
}

NameMap::NameMap(const FamilyNames& names, const DecoderSpec& spec)
    : spec_(spec) {
  // Spellings outside, so that a role's stems are ordered by spelling first.
  for (const Spelling& spelling : names.spellings) {
    for (const NameRule& rule : names.rules) {
      std::string_view prefix = of_head(rule) ? spelling.head : spelling.body;
      int layers = has(rule.stem, kLayer) ? int(spec.blocks.size()) : 1;
      for (int layer = 0; layer < layers; ++layer) {
        add(rule, prefix, layer);
      }
    }
  }
}

void NameMap::add(const NameRule& rule, std::string_view prefix, int layer) {
  std::string stem = cat(prefix, with_number(rule.stem, kLayer, layer));
  std::vector<std::string> roles;
  for (const std::string& role : rule.roles) {
    roles.push_back(with_number(role, kLayer, layer));
  }
  if (!has(rule.roles.front(), kExpert)) {
    add(std::move(stem), roles, 0);
    return;
  }
  const auto& moe = spec_.blocks[size_t(layer)].moe;
  std::vector<std::string> all;
  for (int expert = 0; expert < (moe ? moe->experts : 0); ++expert) {
    std::string role = with_number(roles.front(), kExpert, expert);
    if (has(rule.stem, kExpert)) {
      add(with_number(stem, kExpert, expert), {role}, 0);
    } else {
      all.push_back(std::move(role));
    }
  }
  if (!all.empty()) {
    add(std::move(stem), all, int(all.size()));
  }
}

void NameMap::add(
    std::string stem, const std::vector<std::string>& roles, int stacked) {
  std::vector<RolePart> parts;
  int64_t first = 0;
  for (const std::string& role : roles) {
    RolePart part{.role = parse_role(role)};
    part.first = first;
    part.count = rows(part.role);
    first += part.count;
    if (part.count > 0) {
      parts.push_back(std::move(part));
    }
  }
  if (parts.empty()) {
    return;  // this layer has no such part
  }
  auto [entry, fresh] = by_stem_.try_emplace(stem, std::move(parts));
  if (!fresh) {
    return;  // an equal spelling: two prefixes that do not reach the head
  }
  for (const RolePart& part : entry->second) {
    by_role_[part.role.name].push_back({stem, part.first, part.count, stacked});
  }
}

int64_t NameMap::rows(const Role& role) const {
  if (role.kind == "embedding" || role.kind == "head") {
    return spec_.vocab_size;
  }
  if (role.kind == "final_norm") {
    return spec_.hidden_size;
  }
  if (role.layer < 0 || size_t(role.layer) >= spec_.blocks.size()) {
    return 0;
  }
  return block_rows(
      spec_.blocks[size_t(role.layer)], spec_.hidden_size, role.kind);
}

int64_t NameMap::cols(const Role& role) const {
  if (role.kind == "embedding" || role.kind == "head") {
    return spec_.hidden_size;
  }
  if (role.layer < 0 || size_t(role.layer) >= spec_.blocks.size()) {
    return 0;
  }
  return block_cols(
      spec_.blocks[size_t(role.layer)], spec_.hidden_size, role.kind);
}

std::vector<RolePart> NameMap::parts_of(std::string_view stem) const {
  auto found = by_stem_.find(stem);
  return found == by_stem_.end() ? std::vector<RolePart>{} : found->second;
}

std::vector<StemRows> NameMap::stems_of(std::string_view role) const {
  auto found = by_role_.find(role);
  return found == by_role_.end() ? std::vector<StemRows>{} : found->second;
}

std::optional<StemRows> NameMap::locate(
    std::string_view role, const WeightMap& weights) const {
  auto found = by_role_.find(role);
  if (found != by_role_.end()) {
    for (const StemRows& rows : found->second) {
      if (weights.contains(cat(rows.stem, ".weight"))) {
        return rows;
      }
    }
  }
  return std::nullopt;
}

std::vector<Target> NameMap::resolve(
    std::string_view stem, const WeightMap& weights) const {
  std::vector<Target> targets;
  for (const RolePart& part : parts_of(stem)) {
    std::optional<StemRows> rows = locate(part.role.name, weights);
    if (!rows) {
      return {};
    }
    Target target{
        .rows = *std::move(rows),
        .named_first = part.first,
        .slot = linear_slot(part.role),
        .slot_first = slot_offset(*this, part.role)};
    if (!targets.empty()) {
      Target& last = targets.back();
      if (last.rows.stem == target.rows.stem && last.slot == target.slot &&
          last.rows.first + last.rows.count == target.rows.first &&
          last.slot_first + last.rows.count == target.slot_first) {
        last.rows.count += target.rows.count;
        continue;
      }
    }
    targets.push_back(std::move(target));
  }
  return targets;
}

std::vector<std::string> NameMap::known_stems() const {
  std::vector<std::string> stems;
  stems.reserve(by_stem_.size());
  for (const auto& [stem, parts] : by_stem_) {
    stems.push_back(stem);
  }
  return stems;
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
