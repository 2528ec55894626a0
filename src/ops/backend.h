// The interface that both backends implement. Models call the functions in
// ops.h, which check their arguments once for both.
#pragma once

#include "core/tensor.h"
#include "ops/kv_cache.h"
#include "ops/recurrence.h"
#include "ops/step.h"
#include "ops/weights.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

namespace mlxcel {

enum class Activation : uint8_t {
  none,
  silu,
  gelu,
  gelu_tanh,
  relu,
  relu_squared,
  tanh,
  sigmoid,
  xielu,  // by numbers of its own, for a plain MLP: see Xielu
};

// In place of act(gate) * up, where limit is not 0:
// g sigmoid(alpha g) (clamp(up, -limit, limit) + 1) with g = min(gate, limit)
struct SwigluClamp {
  float alpha = 1;
  float limit = 0;
};

// Huang and Schlag 2024, "Deriving Activation Functions Using Integration":
//   x > 0: alpha_p x^2 + beta x
//   else:  alpha_n (e^min(x, eps) - 1 - x) + beta x
struct Xielu {
  float alpha_p = 0, alpha_n = 0, beta = 0, eps = 0;
};

// Around a linear or an MLP: y = residual + output_scale * f(norm(x)).
// Null pointers leave the part out.
struct LinearOptions {
  const Norm* norm = nullptr;         // on the input
  const Norm* output_norm = nullptr;  // on f's result, before the residual
  const Tensor* residual = nullptr;
  float output_scale = 1;
};

struct MlpWeights {
  const Linear* up = nullptr;  // gated: parts [gate, up], output 2 * inner
  const Linear* down = nullptr;
  Activation activation = Activation::silu;
  bool gated = true;                 // act(gate) * up, else act(up)
  bool in_turn = false;              // gated: up's rows are gate, up, gate, up
  const Norm* inner_norm = nullptr;  // on the inner row, before down
  SwigluClamp clamp;
  Xielu xielu;
  float gate_scale = 1;  // act(gate_scale * gate) * up
};

// What the router's logits become before the largest are chosen.
enum class RouterScores : uint8_t {
  softmax,  // over all experts
  sigmoid,
  // Two experts; the share of each is its part of a softmax over the logits
  // that come near its own (Liu et al. 2024, "GRIN", evaluation).
  sparse_mixer,
};
enum class Shares : uint8_t { as_scored, renormalized };  // by their sum
enum class GroupScore : uint8_t { best, best_two };  // of a group's experts

// Equal groups of experts, one after the other: only experts of those groups
// are chosen that score best.
struct ExpertGroups {
  int count = 1;
  int kept = 1;
  GroupScore score = GroupScore::best;
};

// What is multiplied with a share: an expert's result or what it reads.
enum class RouterTarget : uint8_t { output, input };

// How the router's logits become the shares of the chosen experts.
struct Routing {
  RouterScores scores = RouterScores::softmax;
  Shares shares = Shares::as_scored;
  float scale = 1;      // on the shares
  float least_sum = 0;  // that renormalized shares are divided by
  float tolerance = 0;  // of the sparse mixer
  ExpertGroups groups;
  RouterTarget target = RouterTarget::output;
};

// f(x) = sum over the chosen experts e of share_e * down_e(act(gate_e) * up_e)
//        + sum of the shares of chosen identity experts * x
//        + sigmoid(shared_gate x) * shared(x)
struct MoeWeights {
  const Linear* router = nullptr;  // out: experts, then identity experts
  Routing routing;
  int experts_per_token = 0;
  int identity_experts = 0;
  // Added to the scores for the choice alone, one an output of the router;
  // empty: none.
  std::vector<float> selection_bias;
  // The router's result where it does not read what the experts read; null:
  // router(x).
  const Tensor* logits = nullptr;
  // On the shares, one an output of the router; empty: ones.
  std::vector<float> share_scale;
  const Experts* up = nullptr;  // gated: parts [gate, up], output 2 * inner
  const Experts* down = nullptr;
  Activation activation = Activation::silu;
  bool gated = true;  // act(gate) * up, else act(up)
  SwigluClamp clamp;
  // Applied to every row; null up: no such expert. Null gate: added as it is.
  MlpWeights shared;
  const Linear* shared_gate = nullptr;  // out: 1
};

// Which keys a row at position p sees: those from first(p) to its own.
struct Window {
  int64_t size = 0;      // 0: everything before
  bool chunked = false;  // p's own chunk of `size` positions, not the last ones

  Window() = default;
  Window(int64_t window_size, bool in_chunks = false)
      : size(window_size), chunked(in_chunks) {}
  int64_t first(int64_t p) const {
    if (size == 0) {
      return 0;
    }
    return chunked ? p - p % size : std::max<int64_t>(0, p - size + 1);
  }
  auto operator<=>(const Window&) const = default;
};

// What heads see of blocks of positions: their own block, the local - 1 before
// it, and head h every block b with (b + h + 1) % stride == 0. Abdin et al.
// 2024, "Phi-3 Technical Report", figure 1.
struct SparseBlocks {
  int size = 0;  // positions of a block, 32 or 64; 0: everything is seen
  int local = 1;
  int stride = 1;

  // For a key at or before the position.
  bool sees(int head, int64_t position, int64_t key) const {
    return position / size - key / size < local ||
           (key / size + head + 1) % stride == 0;
  }
};

// On the queries of position p: 1 + slope * ln(1 + floor((p + offset) /
// length)), in f32; length 0: none.
struct QueryScaling {
  float slope = 0;
  int64_t length = 0;
  int offset = 0;

  float at(int64_t p) const {
    return length == 0
               ? 1
               : 1 + slope *
                         std::log(
                             1 + std::floor(float(p + offset) / float(length)));
  }
};

// Where the keys and values of the step's rows come from.
enum class KeyValues : uint8_t {
  projected,  // k and v stand in qkv
  from_keys,  // k stands in qkv, and is the values too: before norm and
              // rotation
  cached,     // in the cache already: another layer of the model wrote them
};

// Which key head a query head reads.
enum class HeadOrder : uint8_t {
  grouped,  // head / (num_heads / num_kv_heads)
  cycled,   // head % num_kv_heads
};

struct AttentionArgs {
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  HeadOrder head_order = HeadOrder::grouped;
  float scale = 0;    // on q k^T
  float softcap = 0;  // cap * tanh(s / cap); 0: none
  Window window;
  const Rope* rope = nullptr;  // null: no rotation in this layer
  // Size head_dim: on each head; size heads * head_dim: on the whole
  // projection.
  const Norm* q_norm = nullptr;
  const Norm* k_norm = nullptr;
  const Norm* v_norm = nullptr;  // size head_dim
  // q, k and v are limited to [-clip, clip] after the norms and before the
  // rotation; 0: they are not.
  float clip = 0;
  bool norm_after_rope = false;  // q_norm and k_norm
  QueryScaling query_scaling;
  KeyValues key_values = KeyValues::projected;
  // qkv ends with num_heads * head_dim columns whose sigmoid the result is
  // multiplied by.
  bool gated = false;
  // One logit a head that takes part in the softmax and adds nothing; empty:
  // none.
  std::vector<float> sinks;
  // One a head, times (key's position - p), added to the scores; empty: none.
  // Press et al. 2021, "Train Short, Test Long". Not with a soft cap.
  std::vector<float> alibi_slopes;
  SparseBlocks sparse;
};

// Latent attention: of a position only a latent vector and a rotated key for
// all heads are kept (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1).
//   c = latent_scale * latent_norm(kv[: latent]), k = rope(kv[latent :])
//   q of head h: [p (features without rotation), r (rotated ones)]
//   s_h = scale * ((key_up_h p) . c + rope(r) . k)
//   y_h = value_up_h * sum over positions of softmax(s_h) * c
struct LatentAttentionArgs {
  const HeadLinear* key_up = nullptr;    // [latent, features of p] a head
  const HeadLinear* value_up = nullptr;  // [features of y_h, latent] a head
  const Norm* latent_norm = nullptr;
  const Rope* rope = nullptr;  // null: r and k do not turn
  int rope_dim = 0;            // features of r and k
  float scale = 0;
  float latent_scale = 1;

  int num_heads() const {
    return key_up->count();
  }
  int latent_dim() const {
    return int(key_up->out());
  }
};

// scale * activation(x) * y[:, column : column + columns of x]
struct MultiplyOptions {
  Activation activation = Activation::none;
  int64_t column = 0;
  float scale = 1;
};

struct HeadArgs {
  const Norm* norm = nullptr;  // final norm
  const Linear* head = nullptr;
  float scale = 1;  // on the logits, before the cap
  float softcap = 0;
};

struct BackendOptions {
  int threads = 0;            // 0: what the process may use
  bool prefill_int8 = false;  // 8-bit activations in prompt linears
  DType activation_dtype =
      DType::f16;  // f32, f16, bf16: follows the checkpoint
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string description()
      const = 0;  // "cpu (avx512_bf16, 2 threads)"

  // The handles keep what they need of the weights alive.
  virtual std::unique_ptr<Linear> prepare_linear(LinearWeights weights) = 0;
  virtual std::unique_ptr<Experts> prepare_experts(ExpertWeights weights) = 0;
  virtual std::unique_ptr<HeadLinear> prepare_heads(HeadWeights weights) = 0;
  virtual std::unique_ptr<Embedding> prepare_embedding(
      EmbeddingWeights weights) = 0;
  virtual std::unique_ptr<Norm> prepare_norm(NormWeights weights) = 0;
  virtual std::unique_ptr<Rope> prepare_rope(RopeTable table) = 0;
  virtual std::unique_ptr<Constants> prepare_constants(
      std::vector<float> values);
  virtual std::unique_ptr<KvCache> make_kv_cache(const KvCacheSpec& spec) = 0;

  // Each op returns a new tensor [rows of the step, columns].
  virtual Tensor embed(
      const Step& step, const Embedding& table, float scale) = 0;
  // Each run of norm.size() columns by itself.
  virtual Tensor norm(const Step& step, const Tensor& x, const Norm& norm) = 0;
  virtual Tensor linear(
      const Step& step,
      const Tensor& x,
      const Linear& weight,
      const LinearOptions& options) = 0;
  virtual Tensor mlp(
      const Step& step,
      const Tensor& x,
      const MlpWeights& weights,
      const LinearOptions& options) = 0;
  virtual Tensor moe(
      const Step& step,
      const Tensor& x,
      const MoeWeights& weights,
      const LinearOptions& options) = 0;
  // qkv: [rows, columns], q then k, v and gate as far as there are any, each a
  // multiple of head_dim. Writes k and v of the rows into the cache, then
  // attends. `shared`, or null: the qkv of another layer, whose k and v stand
  // in place of those that this one then lacks; they are normed, rotated and
  // cached as this layer's own.
  virtual Tensor attention(
      const Step& step,
      const Tensor& qkv,
      const AttentionArgs& args,
      KvCache& cache,
      int layer,
      const Tensor* shared) = 0;
  // q: [rows, heads * (features of p + rope_dim)], kv: [rows, latent +
  // rope_dim]. The cache's layer has one key head of rope_dim + latent features
  // and no values. Returns [rows, heads * features of y_h].
  virtual Tensor latent_attention(
      const Step& step,
      const Tensor& q,
      const Tensor& kv,
      const LatentAttentionArgs& args,
      KvCache& cache,
      int layer) = 0;
  // Reads and updates the sequences' states of the layer. A backend without
  // recurrences throws Error.
  virtual Tensor recurrence(
      const Step& step, const Recurrence& op, KvCache& cache, int layer);
  // x + scale * y
  virtual Tensor add(
      const Step& step, const Tensor& x, const Tensor& y, float scale) = 0;
  // Null y: ones.
  virtual Tensor multiply(
      const Step& step,
      const Tensor& x,
      const Tensor* y,
      const MultiplyOptions& options) = 0;
  // base + sum over k of weights[:, first + k] * inputs[k], row by row
  virtual Tensor weighted_sum(
      const Step& step,
      const Tensor& base,
      const std::vector<Tensor>& inputs,
      const Tensor& weights,
      int64_t first) = 0;
  // x * root_mean_square(like) / sqrt(max(mean(x^2), 1e-5)), row by row
  virtual Tensor match_size(
      const Step& step, const Tensor& x, const Tensor& like) = 0;
  // max(0, x - mean(x) - deviations * standard_deviation(x)) of the first
  // `columns` of x, row by row
  virtual Tensor cut_below(
      const Step& step, const Tensor& x, int64_t columns, float deviations) = 0;
  // Logits f32 [step.output_rows.size(), vocab].
  virtual Tensor head(
      const Step& step, const Tensor& x, const HeadArgs& args) = 0;

  // Waits for the tensor and copies it out as f32, row-major.
  virtual void read(const Tensor& tensor, float* out) = 0;
};

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options);
// Loads the graph backend's library on first use; throws when it is missing.
std::unique_ptr<Backend> make_graph_backend(const BackendOptions& options);
// Whether the graph backend is installed and sees a GPU: then it is the better
// default. Loads the library only where the system shows a GPU.
bool graph_backend_has_gpu();

}  // namespace mlxcel
