// A family's tensor names as data that works both ways: from a checkpoint's
// stem to our roles, and from a role to the stems that may hold it.
//
// A stem is a tensor name without its last part: the stem of
// "model.layers.0.self_attn.q_proj.weight" (and of .bias, .scales, .biases) is
// "model.layers.0.self_attn.q_proj". A role is our name of what a stem holds;
// checkpoint names mislead ("post_attention_layernorm" precedes the MLP in
// Llama and follows the attention in Gemma 2).
//
// Roles of a decoder, {l} is the layer:
//   embedding                      table [vocab, hidden]
//   positions                      table of learned positions [rows, hidden]
//   layers.{l}.attention_norm      before the attention
//   layers.{l}.attention.q .k .v   projections
//   layers.{l}.attention.q_norm .k_norm
//   layers.{l}.attention.inner_norm                before the output projection
//   layers.{l}.attention.o         output projection
//   layers.{l}.attention_post_norm on the attention's result
//   layers.{l}.mlp_norm            before the MLP
//   layers.{l}.mlp.gate .up .down
//   layers.{l}.mlp.inner_norm      before down
//   layers.{l}.moe.router          in place of the MLP: logits of the experts
//   layers.{l}.moe.experts.{e}.gate .up .down    {e} is the expert
//   layers.{l}.moe.shared.gate .up .down         for every row
//   layers.{l}.moe.shared_gate                   [1, hidden]
//   layers.{l}.mlp_post_norm       on the MLP's or the experts' result
//   final_norm, head
// A part of another kind (PartSpec) adds its own below the layer.
//
// A stem may also be the whole key of a tensor without a suffix, as recurrent
// layers store their decay: "layers.{l}.mixer.A_log".
#pragma once

#include "io/weight_map.h"
#include "models/spec.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mlxcel {

// A stem holds one role, or the rows of several roles one after the other. The
// stem is written without a prefix; {l} stands for the layer in both, {e} for
// the expert. Where a checkpoint stores two layers as one, {l/2} in the stem is
// its number and {l%2} the place of ours in it. A stem without {e} of a role
// with it is a 3-D tensor: one matrix an expert.
struct NameRule {
  std::string stem;                // "layers.{l}.self_attn.qkv_proj"
  std::vector<std::string> roles;  // {"layers.{l}.attention.q", ".k", ".v"}
  // The rows lie in groups, one a key/value head, each with an equal share of
  // every role's rows.
  bool grouped = false;
};

// The stem's rows are those of the roles, in this order.
NameRule split_rows(std::string stem, std::vector<std::string> roles);

// The same with the rows in groups: q, k and v of the first key/value head,
// then those of the second.
NameRule split_groups(std::string stem, std::vector<std::string> roles);

// The stem is one tensor [experts, out, in] with the role's matrix of each
// expert.
NameRule stack_experts(std::string stem, std::string role);
// The same with the rows of several roles in each matrix: gate, then up.
NameRule stack_split_rows(std::string stem, std::vector<std::string> roles);

// What stands before the stems in one way of writing a checkpoint: before the
// head's, and before all others.
struct Spelling {
  std::string body;  // "model."
  std::string head;  // "" for "lm_head"
};

// How the rows of several parts lie in one matrix.
enum class RowOrder : uint8_t {
  one_by_one,  // all rows of the first part, then those of the next
  in_turn,     // the first row of each part, then the second of each
};

// Matrices of all experts in one tensor as a publisher stores them, [in, out]
// an expert, under a key without a suffix or as MXFP4 blocks. Loading spreads
// them over the stems of the parts, which an MLX conversion has in their place:
// see loading/expert_stacks.h.
struct PublishedStack {
  std::string stem;                // "layers.{l}.mlp.experts.gate_up_proj"
  std::vector<std::string> parts;  // stems of stack_experts() rules
  RowOrder order = RowOrder::one_by_one;
  bool input_first = true;  // false: [out, in]
};

// All names of a family. A checkpoint uses one of the spellings throughout.
struct FamilyNames {
  std::vector<NameRule> rules;
  std::vector<Spelling> spellings;  // in order of preference
  // Roles whose matrices the publisher stores [in, out]; an MLX conversion
  // stores them as all others.
  std::vector<std::string> input_first;
  std::vector<PublishedStack> stacks;
};

// A role of one layer (layer -1: of the whole model).
struct Role {
  std::string name;  // with the layer's number: "layers.3.attention.q"
  std::string kind;  // without it: "attention.q", "embedding"
  int layer = -1;
  bool operator==(const Role&) const = default;
};

// A role's rows inside a stem's tensor. A whole tensor has first 0 and all the
// role's rows.
struct RolePart {
  Role role;
  int64_t first = 0;
  int64_t count = 0;
  int64_t role_first = 0;  // the first of these rows, counted within the role
};

// Rows of a tensor that the checkpoint really holds.
struct StemRows {
  std::string stem;
  int64_t first = 0;
  int64_t count = 0;
  int stacked = 0;  // matrices of a 3-D tensor, whose rows follow each other
  int64_t role_first = 0;  // as in RolePart
  bool operator==(const StemRows&) const = default;
};

// Rows [named_first, named_first + rows.count) of the tensor that a user named
// are `rows` of the checkpoint's tensor, and rows [slot_first, ...) of the
// model's linear `slot`.
struct Target {
  StemRows rows;
  int64_t named_first = 0;
  std::string slot;  // NameMap::slot_of(): "layers.3.attention.qkv"
  int64_t slot_first = 0;
};

// The names of one model: a family's rules with the row counts of its spec.
class NameMap {
 public:
  NameMap(const FamilyNames& names, const DecoderSpec& spec);

  // Rows (outputs) of a matrix role, length of a norm; 0 for unknown roles and
  // layers that do not exist.
  int64_t rows(const Role& role) const;
  // Columns (inputs) of a matrix role; 0 for norms and unknown roles.
  int64_t cols(const Role& role) const;

  // The linear of the model that a role is a part of: q, k and v are rows of
  // "layers.{l}.attention.qkv", gate and up of "layers.{l}.mlp.up"; every other
  // matrix role is its own linear ("layers.{l}.attention.o", "embedding").
  // Empty for roles that the model does not have.
  std::string slot_of(const Role& role) const;

  // What a stem holds, in row order, in any spelling of the family; empty when
  // it is none of the family's or the spec has no such part.
  std::vector<RolePart> parts_of(std::string_view stem) const;

  // The stems that may hold a role, with its rows there: preferred first.
  std::vector<StemRows> stems_of(std::string_view role) const;

  // The runs of rows of the stem in `weights` that holds the role, in the
  // role's order; empty when none does.
  std::vector<StemRows> locate_all(
      std::string_view role, const WeightMap& weights) const;
  // The first of them; nullopt when none holds the role.
  std::optional<StemRows> locate(
      std::string_view role, const WeightMap& weights) const;

  // Where the rows of `stem`, in any of the family's spellings, lie in the
  // checkpoint and in the model: one entry a run of rows. Empty when the family
  // has no such stem or the checkpoint lacks a part of it.
  std::vector<Target> resolve(
      std::string_view stem, const WeightMap& weights) const;

  // Whether the publisher stores the stem's matrix [in, out].
  bool is_input_first(std::string_view stem) const;

  // The stacks that the publisher may have, in every spelling and layer.
  const std::vector<PublishedStack>& published_stacks() const {
    return stacks_;
  }

  // Every stem the family can have for this spec, sorted: for "did you mean".
  std::vector<std::string> known_stems() const;

  const DecoderSpec& spec() const {
    return spec_;
  }

 private:
  struct Shape {
    int64_t rows = 0, cols = 0;
    std::string slot;
    int64_t slot_first = 0;  // rows of the slot before the role's own
  };
  const Shape& shape(std::string_view role) const;
  void add_shapes();
  void add(const NameRule& rule, std::string_view prefix, int layer);
  // `roles` with the numbers of layer and expert filled in.
  void add(
      std::string stem,
      const std::vector<std::string>& roles,
      int stacked,
      int groups = 1);

  DecoderSpec spec_;
  std::vector<PublishedStack> stacks_;
  std::vector<std::string> input_first_;              // role kinds
  std::map<std::string, Shape, std::less<>> shapes_;  // by role
  std::map<std::string, std::vector<RolePart>, std::less<>> by_stem_;
  std::map<std::string, std::vector<StemRows>, std::less<>> by_role_;
};

// "layers.3.attention.q" -> {name, "attention.q", 3}
Role parse_role(std::string_view name);
// "model.layers.0.self_attn.q_proj.weight" -> stem and suffix "weight".
std::pair<std::string_view, std::string_view> split_key(std::string_view key);

// The names most decoders use, with `model.` before all but the head, or bare
// as the headless class saves them. A change for one role takes the place of
// the default; one for several (split_rows) goes before the defaults, so that a
// separate name still finds its rows.
FamilyNames hf_decoder_names(const std::vector<NameRule>& changes = {});

// GPT-2's names, with the rule of its one projection for q, k and v.
FamilyNames gpt2_names(NameRule qkv);

// The rule of a stem with the rows of the MLP's gate, then those of up.
NameRule fused_gate_up(std::string stem);

// The names of a text model, also as checkpoints for text and images write
// them: below `language_model.model.` or `model.language_model.`.
FamilyNames wrapped(FamilyNames names);

// The stems of an expert's projections in published checkpoints.
struct ExpertStems {
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
};

// Rules for a mixture under `block` ("layers.{l}.mlp"): the router `gate`, one
// tensor an expert as published, and MLX's stacks `switch_mlp`.
std::vector<NameRule> moe_names(
    const std::string& block, const ExpertStems& stems = {});

}  // namespace mlxcel
