#include "models/spec.h"

#include "core/error.h"

namespace mlxcel {

namespace {

void add_head_norm(
    const std::string& name,
    int heads,
    const AttentionSpec& spec,
    std::vector<RoleShape>& out) {
  const int64_t dim = spec.heads.dim;
  bool one_weight = spec.qk_norm == QkNorm::per_head;
  out.push_back({name, one_weight ? dim : heads * dim, 0, {}});
  for (int head = 0; head < heads && spec.qk_norm == QkNorm::each_head;
       ++head) {
    out.push_back({cat(name, "s.", head), dim, 0, {}});
  }
}

void add_attention(
    const AttentionSpec& spec, int64_t hidden, std::vector<RoleShape>& out) {
  const HeadCounts& heads = spec.heads;
  const int64_t q = int64_t(heads.query) * heads.dim;
  const int64_t kv = int64_t(heads.key_value) * heads.dim;
  const std::string slot = "attention.qkv";
  const AttentionExtras& extras = spec.extras;
  const bool own_keys = extras.shared.kind == Sharing::none;
  out.push_back({"attention.q", q, hidden, slot});
  if (own_keys) {
    out.push_back({"attention.k", kv, hidden, slot});
    if (!extras.keys_as_values) {
      out.push_back({"attention.v", kv, hidden, slot});
    }
  }
  if (extras.gate != OutputGate::none) {
    out.push_back({"attention.gate", q, hidden, slot});
  }
  out.push_back({"attention.o", hidden, q, {}});
  if (spec.qk_norm != QkNorm::none && spec.qk_norm != QkNorm::weightless) {
    add_head_norm("attention.q_norm", heads.query, spec, out);
    if (extras.shared.kind != Sharing::cached) {
      add_head_norm("attention.k_norm", heads.key_value, spec, out);
    }
  }
  if (extras.scores.sinks) {
    out.push_back({"attention.sinks", heads.query, 0, {}});
  }
}

// The numbers of xIELU, in the checkpoint's order of names.
void add_xielu(std::vector<RoleShape>& out) {
  for (const char* number : {"alpha_n", "alpha_p", "beta", "eps"}) {
    out.push_back({cat("mlp.xielu.", number), 1, 0, {}});
  }
}

// An MLP of `inner` features whose roles begin with `name`.
void add_mlp(
    const std::string& name,
    int64_t inner,
    MlpKind kind,
    int64_t hidden,
    std::vector<RoleShape>& out) {
  if (kind == MlpKind::gated) {
    out.push_back({name + "gate", inner, hidden, name + "up"});
  }
  int64_t rows = kind == MlpKind::in_turn ? 2 * inner : inner;
  out.push_back({name + "up", rows, hidden, name + "up"});
  out.push_back({name + "down", hidden, inner, {}});
}

void add_moe(const MoeSpec& spec, int64_t hidden, std::vector<RoleShape>& out) {
  const int64_t routes = int64_t(spec.experts) + spec.identity_experts;
  const int64_t inner = spec.expert.intermediate_size;
  const bool gated = spec.expert.kind == MlpKind::gated;
  out.push_back({"moe.router", routes, hidden, {}});
  for (int expert = 0; expert < spec.experts; ++expert) {
    std::string name = cat("moe.experts.", expert, ".");
    if (gated) {
      out.push_back({name + "gate", inner, hidden, {}});
    }
    out.push_back({name + "up", inner, hidden, {}});
    out.push_back({name + "down", hidden, inner, {}});
  }
  if (int64_t size = spec.shared.intermediate_size; size > 0) {
    add_mlp("moe.shared.", size, spec.shared.kind, hidden, out);
    if (spec.shared_gate == SharedGate::sigmoid) {
      out.push_back({"moe.shared_gate", 1, hidden, {}});
    }
  }
  if (biases_selection(spec.router_bias)) {
    out.push_back({"moe.selection_bias", routes, 0, {}});
  }
}

void add_norms(
    const BlockSpec& block,
    const std::string& half,
    int64_t hidden,
    std::vector<RoleShape>& out) {
  if (block.norm.tensors == NormTensors::none) {
    return;
  }
  if (norms_input(block.norms) &&
      (half == "attention" || block.norms != NormPlacement::parallel)) {
    out.push_back({half + "_norm", hidden, 0, {}});
  }
  if (norms_output(block.norms)) {
    out.push_back({half + "_post_norm", hidden, 0, {}});
  }
  if (block.norms == NormPlacement::pre_inner) {
    const HeadCounts& heads = block.attention.heads;
    int64_t inner = half == "attention" ? int64_t(heads.query) * heads.dim
                                        : block.mlp.intermediate_size;
    out.push_back({half + ".inner_norm", inner, 0, {}});
  }
}

void append(std::vector<RoleShape> roles, std::vector<RoleShape>& out) {
  out.insert(
      out.end(),
      std::make_move_iterator(roles.begin()),
      std::make_move_iterator(roles.end()));
}

}  // namespace

bool biases_logits(RouterBias bias) {
  return bias == RouterBias::logits || bias == RouterBias::both;
}

bool biases_selection(RouterBias bias) {
  return bias == RouterBias::selection || bias == RouterBias::both;
}

bool norms_input(NormPlacement placement) {
  return placement != NormPlacement::post;
}

bool norms_output(NormPlacement placement) {
  return placement == NormPlacement::post ||
         placement == NormPlacement::sandwich;
}

bool is_parallel(NormPlacement placement) {
  return placement == NormPlacement::parallel ||
         placement == NormPlacement::parallel_two_norms;
}

std::vector<RoleShape> roles_of(const BlockSpec& block, int64_t hidden_size) {
  std::vector<RoleShape> out;
  if (block.halves != Halves::feed_forward_only) {
    add_norms(block, "attention", hidden_size, out);
    if (block.mixer) {
      append(block.mixer->roles(hidden_size), out);
    } else {
      add_attention(block.attention, hidden_size, out);
    }
  }
  if (block.halves != Halves::mixer_only) {
    add_norms(block, "mlp", hidden_size, out);
    if (block.feed_forward) {
      append(block.feed_forward->roles(hidden_size), out);
    } else if (block.moe) {
      add_moe(*block.moe, hidden_size, out);
    } else {
      add_mlp(
          "mlp.",
          block.mlp.intermediate_size,
          block.mlp.kind,
          hidden_size,
          out);
      if (block.mlp.activation == Activation::xielu) {
        add_xielu(out);
      }
    }
  }
  return out;
}

KvLayerSpec cache_of(const BlockSpec& block) {
  if (block.halves == Halves::feed_forward_only) {
    return {};
  }
  if (block.mixer) {
    return block.mixer->cache();
  }
  return attention_cache(block.attention);
}

const AttentionSpec* attention_of(const BlockSpec& block) {
  if (block.halves == Halves::feed_forward_only) {
    return nullptr;
  }
  return block.mixer ? block.mixer->grouped_attention() : &block.attention;
}

bool has_rotation(const BlockSpec& block) {
  if (block.halves == Halves::feed_forward_only) {
    return false;
  }
  return block.mixer ? block.mixer->rotates() : block.attention.rope != nullptr;
}

KvLayerSpec attention_cache(const AttentionSpec& spec) {
  if (spec.extras.shared.kind == Sharing::cached) {
    return {};
  }
  return {spec.heads.key_value, spec.heads.dim, spec.heads.dim};
}

std::vector<RoleShape> attention_roles(
    const AttentionSpec& spec, int64_t hidden_size) {
  std::vector<RoleShape> out;
  add_attention(spec, hidden_size, out);
  return out;
}

std::vector<RoleShape> mlp_roles(const MlpSpec& spec, int64_t hidden_size) {
  std::vector<RoleShape> out;
  add_mlp("mlp.", spec.intermediate_size, spec.kind, hidden_size, out);
  return out;
}

std::vector<RoleShape> moe_roles(const MoeSpec& spec, int64_t hidden_size) {
  std::vector<RoleShape> out;
  add_moe(spec, hidden_size, out);
  return out;
}

}  // namespace mlxcel
