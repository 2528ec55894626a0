// Mixers that carry a state of fixed size from token to token, in place of keys
// and values. Each is one op between the projections around it.
//
// A sequence's state lies in its slot of the cache (Segment::state); `state` in
// each op is where its own part begins within the layer's values. Tokens update
// a state one after the other, whatever their role and the cut into steps, so
// that the result does not depend on it. Sums are in f32.
#pragma once

#include "core/tensor.h"

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

namespace mlxcel {

class Norm;

// Numbers of a layer that are no matrix: convolution taps, decay rates. Held by
// the backend as f32.
class Constants {
 public:
  explicit Constants(int64_t size) : size_(size) {}
  virtual ~Constants() = default;
  int64_t size() const {
    return size_;
  }

 private:
  int64_t size_;
};

// A depthwise causal convolution over the last `taps` tokens:
//   y[t, c] = bias[c] + sum_j weight[j, c] * x[t - taps + 1 + j, c]
// Its state is the last taps - 1 rows of x, oldest first.
struct Convolution {
  const Constants* weight = nullptr;  // [taps, channels]
  const Constants* bias = nullptr;    // [channels]; null: zeros
  int taps = 0;
  int64_t channels = 0;
  int64_t state = 0;

  int64_t state_size() const {
    return (taps - 1) * channels;
  }
};

enum class ConvolutionForm : uint8_t {
  silu,      // silu(y) of columns [first, first + channels)
  gated,     // C * y, columns are [B, C, x] and y is of B * x
  replaced,  // all columns, of which [first, first + channels) become y
};

struct ShortConvolution {
  const Tensor* x = nullptr;
  Convolution convolution;
  ConvolutionForm form = ConvolutionForm::silu;
  int64_t first = 0;
};

// Mamba (Gu and Dao, arXiv:2312.00752, section 3): for each channel c
//   h[n] = exp(dt a[n, c]) h[n] + dt B[n] x[c],  dt = softplus(dt[c])
//   y[c] = (sum_n C[n] h[n] + d[c] x[c]) * silu(z[c])
// State [state_size, channels].
struct SelectiveScan {
  const Tensor* x = nullptr;   // [rows, channels]
  const Tensor* dt = nullptr;  // [rows, channels], its bias added
  const Tensor* bc = nullptr;  // [rows, 2 * state_size], B then C
  const Tensor* z = nullptr;   // columns from z_first on
  int64_t z_first = 0;
  const Constants* a = nullptr;  // [state_size, channels], negative
  const Constants* d = nullptr;  // [channels]
  int64_t channels = 0;
  int64_t state_size = 0;
  const Norm* b_norm = nullptr;  // on B and on C of a row; null: none
  const Norm* c_norm = nullptr;
  int64_t state = 0;
};

// How a mixer's heads y meet the gate z before the output projection.
enum class GateForm : uint8_t {
  silu,           // y * silu(z)
  norm_of_gated,  // norm(y * silu(z))
  silu_of_norm,   // norm(y) * silu(z)
  sigmoid_of_norm,
};

// Root-mean-square norm over runs of `group` features, with weights [group]
// that the runs share, or [features].
struct GatedNorm {
  GateForm gate = GateForm::silu;
  const Constants* weight = nullptr;
  int64_t group = 0;
  float eps = 0;
};

// Mamba 2 (Dao and Gu, arXiv:2405.21060, section 7): the columns of the input
// are [z, x, B, C, dt]; x, B and C go through the convolution and silu. For
// each head, dt = clamp(softplus(dt_scale * dt + dt_bias)):
//   H[n, p] = exp(dt a) H[n, p] + dt B[n] x[p]
//   y[p] = sum_n C[n] H[n, p] + d x[p]
// Heads of a group share B and C. State [heads, state_size, head_dim].
struct StateSpaceDual {
  const Tensor* projection = nullptr;
  Convolution convolution;
  int heads = 0, groups = 0;
  int64_t head_dim = 0, state_size = 0;
  const Constants* a = nullptr;        // [heads], negative
  const Constants* d = nullptr;        // [heads]
  const Constants* dt_bias = nullptr;  // [heads]
  float dt_min = 0, dt_max = 0;        // limits of dt
  float dt_scale = 1, z_scale = 1;
  GatedNorm norm;
  int64_t state = 0;
};

// Where the heads' features stand in a projection: those of head h in columns
// [first + h * stride, ...).
struct HeadColumns {
  int64_t first = 0, stride = 0;
};

// The gated delta rule (Yang, Kautz and Hatamizadeh, arXiv:2412.06464; with a
// decay a channel: Kimi Linear, arXiv:2510.26692). q, k and v go through the
// convolution (channels in this order) and silu, q and k to length 1; a group
// of value heads shares a key head. For each value head
//   S = diag(exp(a softplus(decay + dt_bias))) S
//   S = S + k (beta_scale sigmoid(beta) (v - S^T k))^T
//   y = S^T q / sqrt(key_dim)
// State [value_heads, key_dim, value_dim].
struct GatedDelta {
  const Tensor* projection = nullptr;
  const Tensor* decay = nullptr;  // the tensors may be the same
  const Tensor* gate = nullptr;
  Convolution convolution;
  int key_heads = 0, value_heads = 0;
  int64_t key_dim = 0, value_dim = 0;
  // By key head, with all value heads of its group side by side.
  HeadColumns q, k, v, gate_columns, beta_columns, decay_columns;
  bool decay_by_channel = false;
  const Constants* a = nullptr;  // [value_heads], or of each key channel too
  const Constants* dt_bias = nullptr;
  float beta_scale = 1;
  GatedNorm norm;
  int64_t state = 0;
};

// RG-LRU (De et al., arXiv:2402.19427, section 2.4). Columns [y, x]; x goes
// through the convolution, to u. For each channel, with gates i and r =
// sigmoid(u W + bias) by block:
//   log a = decay * r;  h = a h + sqrt(1 - a^2) i u   (position 0: h = i u)
//   out = h * gelu_tanh(y)
struct RealGatedRecurrence {
  const Tensor* projection = nullptr;
  Convolution convolution;
  int blocks = 0;
  int64_t width = 0;
  const Constants* input_weight = nullptr;  // [blocks, in, out]
  const Constants* input_bias = nullptr;    // [width]
  const Constants* recurrent_weight = nullptr;
  const Constants* recurrent_bias = nullptr;
  const Constants* decay = nullptr;  // [width], negative
  int64_t state = 0;
};

// Lightning attention (MiniMax-01, arXiv:2501.08313, section 2.2). Columns: q,
// k, v of each head side by side, silu on all, then the gate.
//   S = decay S + k v^T;  y = S^T q;  out = sigmoid(gate) * norm(y)
// State [heads, head_dim, head_dim].
struct LightningAttention {
  const Tensor* projection = nullptr;
  int heads = 0;
  int64_t head_dim = 0;
  const Constants* decay = nullptr;  // [heads]
  GatedNorm norm;
  int64_t state = 0;
};

// Lightning attention by decays of its own, in blocks of `size` tokens counted
// from the sequence's first. Of the tokens i, j of a block:
//   y_i = query_decay_i S^T q_i + sum_j inside_ij (q_i . k_j) v_j
//   S = block_decay S + sum_j key_decay_j k_j v_j^T    (after a whole block)
// `inside` may let a token see later ones of its block, so a segment is a whole
// sequence, from position 0; no state goes on from it. Columns as above.
struct LightningBlocks {
  const Tensor* projection = nullptr;
  int heads = 0;
  int64_t head_dim = 0;
  int64_t size = 0;
  const Constants* query_decay = nullptr;  // [heads, size]
  const Constants* key_decay = nullptr;    // [heads, size]
  const Constants* inside = nullptr;       // [heads, size, size]
  const Constants* block_decay = nullptr;  // [heads]
  GatedNorm norm;
};

// The row before each row, less the row itself. State: the last row.
struct TokenShift {
  const Tensor* x = nullptr;
  int64_t state = 0;
};

// x + mix * delta, mix [columns].
struct ChannelBlend {
  const Tensor* x = nullptr;
  const Tensor* delta = nullptr;
  const Constants* mix = nullptr;
};

// RWKV-7 (Peng et al., arXiv:2503.14456, section 4): with w = exp(-e^-1/2
// sigmoid(w)), a = sigmoid(a), v moved towards v_first by sigmoid(v_mix), and
// kk = k * k_k at length 1 by head, k = k (1 + (a - 1) k_a):
//   S = S (diag(w) - kk (kk a)^T) + v k^T;  y = S r
//   out = (norm(y) + (sum r k r_k) v) * g
// State [heads, head_dim (of k), head_dim (of v)].
struct Rwkv7 {
  const Tensor *r = nullptr, *w = nullptr, *k = nullptr, *v = nullptr;
  const Tensor *a = nullptr, *g = nullptr;
  const Tensor *v_first = nullptr, *v_mix = nullptr;  // null in layer 0
  int heads = 0;
  int64_t head_dim = 0;
  const Constants *k_k = nullptr, *k_a = nullptr, *r_k = nullptr;
  const Constants *norm_weight = nullptr, *norm_bias = nullptr;
  float eps = 0;  // of the layer norm on each head
  int64_t state = 0;
};

using Recurrence = std::variant<
    ShortConvolution,
    SelectiveScan,
    StateSpaceDual,
    GatedDelta,
    RealGatedRecurrence,
    LightningAttention,
    LightningBlocks,
    TokenShift,
    ChannelBlend,
    Rwkv7>;

// Columns of the result.
int64_t output_columns(const Recurrence& op);

}  // namespace mlxcel
