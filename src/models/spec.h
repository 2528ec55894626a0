// A decoder as data: what a family's file turns its config into, and what the
// builder turns into blocks. Absent optionals mean the part does not exist.
#pragma once

#include "ops/backend.h"
#include "ops/weights.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace mlxcel {

struct NormSpec {
  NormKind kind = NormKind::rms;  // layer norms carry a bias tensor
  float eps = 0;
  float weight_offset = 0;  // added to the stored weight
};

struct HeadCounts {
  int query = 0;
  int key_value = 0;
  int dim = 0;  // features a head
};

// Norms on queries and keys, before the rotation.
enum class QkNorm : uint8_t {
  none,
  per_head,    // weight [head_dim], shared by the heads
  projection,  // weight [heads * head_dim], over the whole projection
};

enum class AttentionBias : uint8_t { none, qkv, all };  // all: output too

struct AttentionSpec {
  HeadCounts heads;
  float scale = 0;                        // on q k^T
  float softcap = 0;                      // 0: none
  int64_t window = 0;                     // 0: sees everything before
  std::shared_ptr<const RopeTable> rope;  // null: no rotation
  QkNorm qk_norm = QkNorm::none;          // of the block's norm kind and eps
  AttentionBias bias = AttentionBias::none;
};

enum class MlpKind : uint8_t { gated, plain };  // act(gate) * up, or act(up)
enum class MlpBias : uint8_t { none, all };

struct MlpSpec {
  int intermediate_size = 0;
  Activation activation = Activation::silu;
  MlpKind kind = MlpKind::gated;
  MlpBias bias = MlpBias::none;
};

// A mixture of experts: gated MLPs of which a router chooses a few for each
// row.
struct MoeSpec {
  int experts = 0;
  int experts_per_token = 0;
  int intermediate_size = 0;  // of one expert
  Activation activation = Activation::silu;
  Routing routing = Routing::softmax;
  // An expert that serves every row, its result times sigmoid(shared_gate x);
  // 0: none.
  int shared_intermediate_size = 0;
};

// Where a block norms, for each of its two halves f:
enum class NormPlacement : uint8_t {
  pre,       // x + f(norm(x))
  post,      // x + post_norm(f(x))
  sandwich,  // x + post_norm(f(norm(x)))
};

struct BlockSpec {
  NormPlacement norms = NormPlacement::pre;
  NormSpec norm;
  AttentionSpec attention;
  MlpSpec mlp;
  std::optional<MoeSpec> moe;  // stands in place of the MLP
};

enum class HeadKind : uint8_t { own, tied };  // tied: the embedding table

struct DecoderSpec {
  int hidden_size = 0;
  int vocab_size = 0;
  std::vector<BlockSpec> blocks;
  NormSpec final_norm;
  float embedding_scale = 1;
  float logit_softcap = 0;  // 0: none
  HeadKind head = HeadKind::own;
};

}  // namespace mlxcel
