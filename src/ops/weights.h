// What models hand to a backend at load time, and the handles they get back.
// After `prepare` a weight is no tensor any more: the backend owns its layout.
#pragma once

#include "io/weight_map.h"

#include <optional>
#include <string>
#include <vector>

namespace mlxcel {

enum class QuantMode : uint8_t { none, affine, mxfp4, mxfp8, nvfp4 };

struct Quant {
  QuantMode mode = QuantMode::none;
  int bits = 0;        // bits per weight
  int group_size = 0;  // weights that share a scale, along the input

  bool packed() const {
    return mode != QuantMode::none;
  }
  bool operator==(const Quant&) const = default;
};

std::string to_string(const Quant& quant);  // "affine, 4 bits, group 64"

// A matrix [out, in] as the checkpoint holds it.
//   plain:  weight float [out, in]
//   affine: weight u32 [out, in * bits / 32], a little-endian bit stream a row;
//           scales, biases float [out, in / group_size];
//           w = scale * q + bias
struct MatrixWeight {
  std::string name;  // checkpoint stem, for messages
  int64_t out = 0;
  int64_t in = 0;
  Quant quant;
  WeightTensor weight, scales, biases;
};

// Rows [first, first + count) of a matrix: a view, nothing is copied.
MatrixWeight slice_rows(
    const MatrixWeight& matrix, int64_t first, int64_t count);

// The same rows as f32 [count, in]. Throws CheckpointError for packed formats
// other than affine.
void read_rows(
    const MatrixWeight& matrix, int64_t first, int64_t count, float* out);

// A live adapter's term on one part of a linear:
//   y[row_begin : row_begin + rows] += run_time_scale * scale * B (A x)
struct LowRankTerm {
  int adapter = 0;                  // index into Segment::adapter_scales
  int64_t row_begin = 0, rows = 0;  // output rows it adds to
  int64_t rank = 0;
  float scale = 1;  // the adapter's own factor, alpha / rank or scale
  WeightTensor a;   // [in, rank], or [rank, in] when rank_first
  WeightTensor b;   // [rank, rows], or [rows, rank] when rank_first
  bool rank_first = false;
};

// y = x W^T + bias. The parts are stacked along the output (q, k, v; gate, up),
// so one call serves them all, and each keeps its own format.
struct LinearWeights {
  std::string name;
  std::vector<MatrixWeight> parts;  // same `in`
  // One a part or none at all; an absent entry means zeros.
  std::vector<std::optional<WeightTensor>> biases;
  std::vector<LowRankTerm> terms;
};

// One linear for each expert of a mixture, all of one shape, without terms.
struct ExpertWeights {
  std::string name;
  std::vector<LinearWeights> experts;
};

// One linear for each head of a layer, all of one shape; each may have terms.
struct HeadWeights {
  std::string name;
  std::vector<LinearWeights> heads;
};

// Row lookup in a table [vocab, hidden]; terms add
//   x += run_time_scale * scale * A[token] B,  A [vocab, rank], B [rank,
//   hidden]
// (rank_first: A [rank, vocab], B [hidden, rank]).
struct EmbeddingWeights {
  MatrixWeight table;
  std::vector<LowRankTerm> terms;
};

enum class NormKind : uint8_t { rms, layer };

// rms:   y = x / sqrt(mean(x^2) + eps) * (weight + weight_offset)
// layer: y = (x - mean) / sqrt(var + eps) * (weight + weight_offset) + bias
// Sums in f32. No weight means ones. Each of `parts` equal runs of the features
// has sums of its own: heads with a weight each.
struct NormWeights {
  NormKind kind = NormKind::rms;
  int64_t size = 0;
  float eps = 0;
  float weight_offset = 0;
  std::optional<WeightTensor> weight, bias;
  int64_t parts = 1;
};

// Rotary embedding: dimension pair i of a head turns by position * inv_freq[i];
// the result is multiplied by `scale` (yarn's and longrope's mscale).
struct RopeTable {
  int dims = 0;  // rotated dimensions, the first of each head; the rest pass
  bool interleaved = false;     // pairs (2i, 2i+1) instead of (i, i + dims/2)
  std::vector<float> inv_freq;  // dims / 2
  float scale = 1;
  // longrope: used when Segment::rope_length > switch_length.
  int64_t switch_length = 0;  // 0: never
  std::vector<float> long_inv_freq;
  float long_scale = 1;
};

class Linear {
 public:
  Linear(int64_t in, int64_t out) : in_(in), out_(out) {}
  virtual ~Linear() = default;
  int64_t in() const {
    return in_;
  }
  int64_t out() const {
    return out_;
  }

 private:
  int64_t in_, out_;
};

// The same projection of all experts of a mixture.
class Experts {
 public:
  Experts(int count, int64_t in, int64_t out)
      : count_(count), in_(in), out_(out) {}
  virtual ~Experts() = default;
  int count() const {
    return count_;
  }
  int64_t in() const {
    return in_;
  }
  int64_t out() const {
    return out_;
  }

 private:
  int count_;
  int64_t in_, out_;
};

// A linear for each head: head h turns its own part of a row.
class HeadLinear {
 public:
  HeadLinear(int count, int64_t in, int64_t out)
      : count_(count), in_(in), out_(out) {}
  virtual ~HeadLinear() = default;
  int count() const {
    return count_;
  }
  int64_t in() const {  // of one head
    return in_;
  }
  int64_t out() const {
    return out_;
  }

 private:
  int count_;
  int64_t in_, out_;
};

class Embedding {
 public:
  Embedding(int64_t vocab, int64_t hidden) : vocab_(vocab), hidden_(hidden) {}
  virtual ~Embedding() = default;
  int64_t vocab() const {
    return vocab_;
  }
  int64_t hidden() const {
    return hidden_;
  }

 private:
  int64_t vocab_, hidden_;
};

class Norm {
 public:
  explicit Norm(int64_t size) : size_(size) {}
  virtual ~Norm() = default;
  int64_t size() const {
    return size_;
  }

 private:
  int64_t size_;
};

class Rope {
 public:
  explicit Rope(int dims) : dims_(dims) {}
  virtual ~Rope() = default;
  int dims() const {
    return dims_;
  }

 private:
  int dims_;
};

}  // namespace mlxcel
