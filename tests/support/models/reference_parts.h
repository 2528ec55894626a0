// What the reference backend computes with: dense matrices in double precision,
// and the norms and rotations of its handles.
#pragma once

#include "ops/backend.h"

#include <cmath>
#include <memory>
#include <stdexcept>
#include <vector>

namespace mlxcel::testing::reference {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

struct Storage : TensorStorage {
  Rows rows;
};

inline Tensor wrap(Rows rows, int64_t cols) {
  auto storage = std::make_shared<Storage>();
  int64_t count = int64_t(rows.size());
  storage->rows = std::move(rows);
  return Tensor(DType::f32, count, cols, storage);
}

inline const Rows& rows_of(const Tensor& tensor) {
  return static_cast<const Storage&>(*tensor.storage()).rows;
}

inline Row values(const WeightTensor& tensor) {
  std::vector<float> floats(size_t(element_count(tensor.shape)));
  read_as_f32(tensor, floats.data());
  return Row(floats.begin(), floats.end());
}

// Element i of a row of packed codes takes bits [i * bits, (i + 1) * bits).
inline uint32_t code_at(const std::byte* row, int64_t index, int bits) {
  uint32_t code = 0;
  for (int bit = 0; bit < bits; ++bit) {
    int64_t at = index * bits + bit;
    uint32_t byte = uint32_t(row[at / 8]);
    code |= ((byte >> (at % 8)) & 1u) << bit;
  }
  return code;
}

inline Rows dense(const MatrixWeight& matrix) {
  Rows out(size_t(matrix.out), Row(size_t(matrix.in)));
  if (!matrix.quant.packed()) {
    Row flat = values(matrix.weight);
    for (int64_t o = 0; o < matrix.out; ++o) {
      for (int64_t i = 0; i < matrix.in; ++i) {
        out[size_t(o)][size_t(i)] = flat[size_t(o * matrix.in + i)];
      }
    }
    return out;
  }
  if (matrix.quant.mode != QuantMode::affine) {
    throw std::runtime_error("the reference backend knows affine weights only");
  }
  Row scales = values(matrix.scales), biases = values(matrix.biases);
  int64_t groups = matrix.in / matrix.quant.group_size;
  int64_t row_bytes = int64_t(matrix.weight.bytes) / matrix.out;
  for (int64_t o = 0; o < matrix.out; ++o) {
    const std::byte* codes = matrix.weight.data + o * row_bytes;
    for (int64_t i = 0; i < matrix.in; ++i) {
      size_t group = size_t(o * groups + i / matrix.quant.group_size);
      out[size_t(o)][size_t(i)] =
          scales[group] * code_at(codes, i, matrix.quant.bits) + biases[group];
    }
  }
  return out;
}

// The dense matrix B A of a term, [rows, in].
inline Rows product(const LowRankTerm& term, int64_t in) {
  Row a = values(term.a), b = values(term.b);
  Rows out(size_t(term.rows), Row(size_t(in)));
  for (int64_t o = 0; o < term.rows; ++o) {
    for (int64_t i = 0; i < in; ++i) {
      for (int64_t r = 0; r < term.rank; ++r) {
        double left = term.rank_first ? a[size_t(r * in + i)]
                                      : a[size_t(i * term.rank + r)];
        double right = term.rank_first ? b[size_t(o * term.rank + r)]
                                       : b[size_t(r * term.rows + o)];
        out[size_t(o)][size_t(i)] += double(term.scale) * left * right;
      }
    }
  }
  return out;
}

struct Term {
  int adapter;
  int64_t row_begin;
  Rows matrix;
};

inline double adapter_scale(const Segment& segment, int adapter) {
  return size_t(adapter) < segment.adapter_scales.size()
             ? double(segment.adapter_scales[size_t(adapter)])
             : 0;
}

struct ReferenceLinear : Linear {
  ReferenceLinear(const LinearWeights& weights, int64_t out)
      : Linear(weights.parts[0].in, out) {
    for (size_t i = 0; i < weights.parts.size(); ++i) {
      Rows part = dense(weights.parts[i]);
      Row part_bias(part.size());
      if (i < weights.biases.size() && weights.biases[i]) {
        part_bias = values(*weights.biases[i]);
      }
      matrix.insert(matrix.end(), part.begin(), part.end());
      bias.insert(bias.end(), part_bias.begin(), part_bias.end());
    }
    for (const LowRankTerm& term : weights.terms) {
      terms.push_back(
          {term.adapter, term.row_begin, product(term, weights.parts[0].in)});
    }
  }
  Rows matrix;
  Row bias;
  std::vector<Term> terms;
};

struct ReferenceExperts : Experts {
  explicit ReferenceExperts(
      std::vector<std::unique_ptr<ReferenceLinear>> linears)
      : Experts(int(linears.size()), linears[0]->in(), linears[0]->out()),
        experts(std::move(linears)) {}
  std::vector<std::unique_ptr<ReferenceLinear>> experts;
};

struct ReferenceHeads : HeadLinear {
  explicit ReferenceHeads(std::vector<std::unique_ptr<ReferenceLinear>> linears)
      : HeadLinear(int(linears.size()), linears[0]->in(), linears[0]->out()),
        heads(std::move(linears)) {}
  std::vector<std::unique_ptr<ReferenceLinear>> heads;
};

// What the cache keeps of a position.
struct CacheEntry {
  Row k, v;
};

struct ReferenceEmbedding : Embedding {
  explicit ReferenceEmbedding(const EmbeddingWeights& weights)
      : Embedding(weights.table.out, weights.table.in),
        table(dense(weights.table)) {
    for (const LowRankTerm& term : weights.terms) {
      // A [vocab, rank] B [rank, hidden]: the product's rows are tokens.
      LowRankTerm turned = term;
      turned.a = term.b;
      turned.b = term.a;
      turned.rows = weights.table.out;
      turned.rank_first = !term.rank_first;
      terms.push_back({term.adapter, 0, product(turned, weights.table.in)});
    }
  }
  Rows table;
  std::vector<Term> terms;
};

struct ReferenceNorm : Norm {
  explicit ReferenceNorm(const NormWeights& weights)
      : Norm(weights.size),
        kind(weights.kind),
        eps(double(weights.eps)),
        weight(size_t(weights.size), 1),
        bias(size_t(weights.size), 0),
        parts(size_t(weights.parts)) {
    if (weights.weight) {
      weight = values(*weights.weight);
      for (double& value : weight) {
        value += double(weights.weight_offset);
      }
    }
    if (weights.bias) {
      bias = values(*weights.bias);
    }
  }

  // Over each run of size() / parts values.
  void apply(Row& x, size_t begin, size_t end) const {
    size_t length = weight.size() / parts;
    for (size_t first = begin; first < end; first += length) {
      size_t at = (first - begin) % weight.size();
      double mean = 0, square = 0;
      for (size_t i = 0; i < length; ++i) {
        mean += x[first + i] / double(length);
      }
      if (kind == NormKind::rms) {
        mean = 0;
      }
      for (size_t i = 0; i < length; ++i) {
        square += std::pow(x[first + i] - mean, 2) / double(length);
      }
      for (size_t i = 0; i < length; ++i) {
        x[first + i] =
            (x[first + i] - mean) / std::sqrt(square + eps) * weight[at + i] +
            bias[at + i];
      }
    }
  }

  NormKind kind;
  double eps;
  Row weight, bias;
  size_t parts;
};

struct ReferenceRope : Rope {
  explicit ReferenceRope(RopeTable t) : Rope(t.dims), table(std::move(t)) {}

  void apply(
      Row& x,
      size_t begin,
      size_t end,
      int head_dim,
      const Segment& segment,
      int64_t position) const {
    bool is_long =
        table.switch_length > 0 && segment.rope_length > table.switch_length;
    const std::vector<float>& frequencies =
        is_long ? table.long_inv_freq : table.inv_freq;
    double scale = double(is_long ? table.long_scale : table.scale);
    size_t half = frequencies.size();
    for (size_t head = begin; head < end; head += size_t(head_dim)) {
      for (size_t i = 0; i < half; ++i) {
        size_t first = head + (table.interleaved ? 2 * i : i);
        size_t second = head + (table.interleaved ? 2 * i + 1 : i + half);
        double angle = double(float(position) * frequencies[i]);
        double a = x[first], b = x[second];
        x[first] = scale * (a * std::cos(angle) - b * std::sin(angle));
        x[second] = scale * (b * std::cos(angle) + a * std::sin(angle));
      }
    }
  }

  RopeTable table;
};

}  // namespace mlxcel::testing::reference
