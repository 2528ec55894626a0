// The parts that a block is made of. Each gathers its tensors by role, prepares
// them once and then runs on the ops.
#pragma once

#include "models/builder.h"
#include "models/spec.h"

#include <map>
#include <memory>
#include <string_view>

namespace mlxcel {

// Gathers tensors by role and hands them to the backend.
class PartBuilder {
 public:
  explicit PartBuilder(BuildInputs& inputs) : inputs_(inputs) {}

  // The linear whose rows are those of the roles, one part each, with the live
  // terms of their slot. With `bias`, all but the last `unbiased` have one.
  std::unique_ptr<Linear> linear(
      const std::vector<std::string>& roles,
      bool bias,
      size_t unbiased = 0) const;
  // One linear for each of the layer's experts, with one part for each of
  // `parts` ("gate", "up"); from separate tensors or from stacks, whose biases
  // are stacked too.
  std::unique_ptr<Experts> experts(
      int layer,
      int count,
      const std::vector<std::string>& parts,
      bool bias) const;
  std::unique_ptr<Embedding> embedding(std::string_view role) const;
  // The head, from its own tensor or from the embedding table.
  std::unique_ptr<Linear> head(const DecoderSpec& spec) const;
  // A norm without tensors is of the hidden size.
  std::unique_ptr<Norm> norm(std::string_view role, const NormSpec& spec) const;
  // On each head by a weight of its own: see QkNorm::each_head.
  std::unique_ptr<Norm> norm_of_heads(
      std::string_view role, const NormSpec& spec, int heads) const;
  // Layers that share a table share what the backend makes of it; null for
  // null.
  std::shared_ptr<const Rope> rope(const RopeTable* table) const;
  // Of the tables asked for so far: the least length beyond which one of them
  // turns by other frequencies; 0: none.
  int64_t rope_switch_length() const;
  // The role's tensor makes the model one of whole sequences: see
  // ContextTraits. And the tensors that did so far.
  void need_whole_sequence(std::string_view role) const {
    whole_sequence_tensors_.push_back(key_of(role));
  }
  const std::vector<std::string>& whole_sequence_tensors() const {
    return whole_sequence_tensors_;
  }
  // A vector as a table of one row.
  std::unique_ptr<Embedding> row(std::string_view role) const;
  // A float tensor of any of the shapes, `<stem>.weight` or the stem itself.
  // Throws CheckpointError that states the first shape.
  WeightTensor tensor(
      std::string_view role, const std::vector<Shape>& shapes) const;

  // The stem of the role's tensor, for messages.
  std::string key_of(std::string_view role) const {
    return require(role).stem;
  }
  // Whether the checkpoint holds the role.
  bool has(std::string_view role) const;
  // The role's matrix, and the live terms of a slot, for parts that change them
  // before a backend takes them.
  MatrixWeight matrix(std::string_view role) const;
  std::vector<LowRankTerm> take_terms(std::string_view slot) const;

  const NameMap& names() const {
    return inputs_.names;
  }
  Backend& backend() const {
    return inputs_.backend;
  }

 private:
  StemRows require(std::string_view role) const;
  // The role's rows in order: one matrix, or several where a stem mixes roles.
  std::vector<MatrixWeight> matrices(std::string_view role) const;
  std::vector<WeightTensor> vectors(
      std::string_view role, std::string_view suffix) const;
  WeightTensor vector(std::string_view role, std::string_view suffix) const;

  BuildInputs& inputs_;
  mutable std::map<const RopeTable*, std::shared_ptr<const Rope>> ropes_;
  mutable std::vector<std::string> whole_sequence_tensors_;
};

// What parts keep of a step for later ones.
struct Kept {
  // By layer: what its part projected, or computed, for a later one.
  std::map<int, Tensor> projections;
  Tensor per_layer;             // PerLayerInputs::forward()
  std::vector<Tensor> streams;  // of hidden rows, where there are several
};

struct Flow {
  Backend& backend;
  const Step& step;
  KvCache& cache;
  Kept& kept;
};

// One half of a block: y = residual + output_scale * output_norm(f(norm(x))),
// everything but f given by `around`.
class Sublayer {
 public:
  virtual ~Sublayer() = default;
  virtual Tensor forward(
      const Flow& flow, const Tensor& x, const LinearOptions& around) const = 0;
};

std::unique_ptr<Sublayer> make_attention(
    const PartBuilder& builder, const BlockSpec& block, int layer);
std::unique_ptr<Sublayer> make_mlp(
    const PartBuilder& builder, const BlockSpec& block, int layer);
std::unique_ptr<Sublayer> make_moe(
    const PartBuilder& builder, const MoeSpec& spec, int layer);

}  // namespace mlxcel
