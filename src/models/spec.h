// A decoder as data: what a family's file turns its config into, and what the
// builder turns into blocks. Absent optionals mean the part does not exist.
#pragma once

#include "ops/backend.h"
#include "ops/weights.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mlxcel {

// What a norm reads from the checkpoint.
enum class NormTensors : uint8_t {
  usual,   // a weight; layer norms a bias too
  weight,  // a weight alone
  none,
};

struct NormSpec {
  NormKind kind = NormKind::rms;
  float eps = 0;
  float weight_offset = 0;  // added to the stored weight
  NormTensors tensors = NormTensors::usual;
  std::optional<float> output_eps = {};  // of a half's output norm, if another
};

struct HeadCounts {
  int query = 0;
  int key_value = 0;
  int dim = 0;  // features a head
  HeadOrder order = HeadOrder::grouped;
};

// Norms on queries and keys.
enum class QkNorm : uint8_t {
  none,
  per_head,    // weight [head_dim], shared by the heads
  projection,  // weight [heads * head_dim], over the whole projection
  // On each head, with a weight a head: [heads, head_dim], or a tensor for each
  // head under the role "attention.q_norms.{head}". Layer norms have no bias.
  each_head,
  weightless,  // on each head, without a weight
};

enum class QkNormOrder : uint8_t { before_rope, after_rope };

// Another layer's keys and values in place of the layer's own.
enum class Sharing : uint8_t {
  none,
  cached,     // as that layer cached them
  projected,  // as that layer projected them: norm, rotation, cache are its own
};

// sigmoid(gate x) on the result before the output projection, role
// "attention.gate" [query heads * head_dim].
enum class OutputGate : uint8_t {
  none,
  unbiased,
  as_queries,  // with a bias where the queries have one
};

struct SharedKeyValues {
  Sharing kind = Sharing::none;
  int layer = -1;
};

// What changes the scores or the softmax.
struct ScoreExtras {
  bool sinks = false;  // role "attention.sinks" [query heads]
  bool alibi = false;
  SparseBlocks sparse;
};

// What few families add to grouped-query attention.
struct AttentionExtras {
  QkNormOrder qk_norm_order = QkNormOrder::before_rope;
  QueryScaling query_scaling;
  bool value_norm = false;  // weightless, on each head of the values
  OutputGate gate = OutputGate::none;
  bool keys_as_values = false;  // no projection of values
  float clip = 0;               // of q, k and v; 0: none
  ScoreExtras scores;
  SharedKeyValues shared;
};

enum class AttentionBias : uint8_t { none, qkv, output, all };

struct AttentionSpec {
  HeadCounts heads;
  float scale = 0;    // on q k^T
  float softcap = 0;  // 0: none
  Window window;
  std::shared_ptr<const RopeTable> rope;  // null: no rotation
  QkNorm qk_norm = QkNorm::none;          // of the block's norm kind and eps
  AttentionBias bias = AttentionBias::none;
  AttentionExtras extras;
};

enum class MlpKind : uint8_t {
  gated,    // act(gate) * up
  plain,    // act(up)
  in_turn,  // gated, role "mlp.up" with the rows of gate and up in turn
};
enum class MlpBias : uint8_t { none, all };

struct MlpSpec {
  int intermediate_size = 0;
  Activation activation = Activation::silu;
  MlpKind kind = MlpKind::gated;
  MlpBias bias = MlpBias::none;
  SwigluClamp clamp;
  float gate_scale = 1;    // act(gate_scale * gate) * up
  float output_scale = 1;  // on down's result
};

enum class SharedGate : uint8_t { none, sigmoid };

// Vectors [experts + identity experts] beside the router's matrix.
enum class RouterBias : uint8_t {
  none,
  logits,     // its bias
  selection,  // role "moe.selection_bias": see MoeWeights
  both,
};

bool biases_logits(RouterBias bias);
bool biases_selection(RouterBias bias);

// A mixture of experts: MLPs of which a router chooses a few for each row.
struct MoeSpec {
  int experts = 0;
  int experts_per_token = 0;
  int identity_experts = 0;  // further outputs of the router: give x back
  MlpSpec expert;            // each of them
  Routing routing;
  RouterBias router_bias = RouterBias::none;
  MlpSpec shared;  // an expert that serves every row; of size 0: none
  // Its result is taken times sigmoid(shared_gate x), or as it is.
  SharedGate shared_gate = SharedGate::none;
};

// A tensor that a part of a block reads.
struct RoleShape {
  std::string kind;  // the role without its layer: "attention.q"
  int64_t rows = 0;  // outputs of a matrix, length of a vector
  int64_t cols = 0;  // inputs of a matrix; 0: a vector
  // The linear of the model that the matrix is a part of: roles of one slot are
  // stacked in the order given. Empty: a linear of its own.
  std::string slot;
};

class PartBuilder;
class Sublayer;
struct BlockSpec;

// What stands in place of attention or of the MLP: latent attention, a
// recurrence. Each is a file of its own with what it reads from the checkpoint
// and keeps for a sequence; names, adapters, surgery, the memory estimate and
// batching follow from these.
class PartSpec {
 public:
  virtual ~PartSpec() = default;
  virtual std::vector<RoleShape> roles(int64_t hidden_size) const = 0;
  // What a sequence keeps of this layer; nothing unless overridden.
  virtual KvLayerSpec cache() const {
    return {};
  }
  // The grouped-query attention inside, if there is one.
  virtual const AttentionSpec* grouped_attention() const {
    return nullptr;
  }
  // Whether queries and keys turn with their positions.
  virtual bool rotates() const {
    const AttentionSpec* attention = grouped_attention();
    return attention != nullptr && attention->rope != nullptr;
  }
  // Values a row holds at the part's widest point, for the memory estimate.
  virtual int64_t columns() const = 0;
  virtual std::unique_ptr<Sublayer> build(
      const PartBuilder& builder, const BlockSpec& block, int layer) const = 0;
};

// Where a block norms, for each of its two halves f:
enum class NormPlacement : uint8_t {
  pre,        // x + f(norm(x))
  post,       // x + post_norm(f(x))
  sandwich,   // x + post_norm(f(norm(x)))
  pre_inner,  // pre, and a norm before each half's last projection
  // Both halves read the block's input: x + f1(norm(x)) + f2(norm(x)), under
  // one norm (of the attention) or each under its own.
  parallel,
  parallel_two_norms,
};

bool norms_input(NormPlacement placement);
bool norms_output(NormPlacement placement);
bool is_parallel(NormPlacement placement);

enum class Halves : uint8_t { both, mixer_only, feed_forward_only };

struct BlockSpec {
  NormPlacement norms = NormPlacement::pre;
  NormSpec norm;
  AttentionSpec attention;
  MlpSpec mlp;
  std::optional<MoeSpec> moe;                    // stands in place of the MLP
  std::shared_ptr<const PartSpec> mixer;         // in place of attention
  std::shared_ptr<const PartSpec> feed_forward;  // in place of MLP and experts
  Halves halves = Halves::both;
};

// The roles of a block's tensors, for those of its parts that exist.
std::vector<RoleShape> roles_of(const BlockSpec& block, int64_t hidden_size);

// What a sequence keeps of the block.
KvLayerSpec cache_of(const BlockSpec& block);

// Its grouped-query attention, or that of its mixer; null without one.
const AttentionSpec* attention_of(const BlockSpec& block);

// Whether its queries and keys turn with their positions.
bool has_rotation(const BlockSpec& block);

// The same of parts that stand inside others.
std::vector<RoleShape> attention_roles(
    const AttentionSpec& spec, int64_t hidden_size);
std::vector<RoleShape> mlp_roles(const MlpSpec& spec, int64_t hidden_size);
std::vector<RoleShape> moe_roles(const MoeSpec& spec, int64_t hidden_size);
KvLayerSpec attention_cache(const AttentionSpec& spec);

enum class HeadKind : uint8_t { own, tied };  // tied: the embedding table

// A vector of `size` for each layer and token, from a table of its own.
struct PerLayerInputSpec {
  int size = 0;  // 0: none
  int vocab_size = 0;
};

// Hidden rows in several streams (models/altup.h), one of which is active.
struct StreamSpec {
  int count = 1;
  int active = 0;
};

enum class HeadBias : uint8_t { none, stored };
// What a float head's matrix becomes.
enum class HeadRows : uint8_t {
  as_stored,
  normalized,          // each row is divided by its length
  columns_normalized,  // each column is, plus 1e-7
};

// What few families change about the head.
struct HeadExtras {
  HeadBias bias = HeadBias::none;
  HeadRows rows = HeadRows::as_stored;
  std::vector<int32_t> masked_tokens;  // their logits are -infinity
};

// Rows of a table "positions" that is added to the embedding: row position +
// offset. No rows: no table.
struct LearnedPositions {
  int rows = 0;
  int offset = 0;
};

// What few families add to a decoder.
struct DecoderExtras {
  float logit_scale = 1;                   // before the soft cap
  std::optional<NormSpec> embedding_norm;  // on the first block's input
  float residual_scale = 1;  // on each half before it joins the residual
  LearnedPositions positions;
  HeadExtras head;
  PerLayerInputSpec per_layer;
  StreamSpec streams;
};

struct DecoderSpec {
  int hidden_size = 0;
  int vocab_size = 0;
  std::vector<BlockSpec> blocks;
  NormSpec final_norm;
  float embedding_scale = 1;
  float logit_softcap = 0;  // 0: none
  HeadKind head = HeadKind::own;
  DecoderExtras extras;
};

}  // namespace mlxcel
