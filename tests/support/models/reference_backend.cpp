#include "support/models/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <vector>

namespace mlxcel::testing {

namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

struct Storage : TensorStorage {
  Rows rows;
};

Tensor wrap(Rows rows, int64_t cols) {
  auto storage = std::make_shared<Storage>();
  int64_t count = int64_t(rows.size());
  storage->rows = std::move(rows);
  return Tensor(DType::f32, count, cols, storage);
}

const Rows& rows_of(const Tensor& tensor) {
  return static_cast<const Storage&>(*tensor.storage()).rows;
}

Row values(const WeightTensor& tensor) {
  std::vector<float> floats(size_t(element_count(tensor.shape)));
  read_as_f32(tensor, floats.data());
  return Row(floats.begin(), floats.end());
}

// Element i of a row of packed codes takes bits [i * bits, (i + 1) * bits).
uint32_t code_at(const std::byte* row, int64_t index, int bits) {
  uint32_t code = 0;
  for (int bit = 0; bit < bits; ++bit) {
    int64_t at = index * bits + bit;
    uint32_t byte = uint32_t(row[at / 8]);
    code |= ((byte >> (at % 8)) & 1u) << bit;
  }
  return code;
}

Rows dense(const MatrixWeight& matrix) {
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
Rows product(const LowRankTerm& term, int64_t in) {
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

double adapter_scale(const Segment& segment, int adapter) {
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
        bias(size_t(weights.size), 0) {
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

  // Over each run of size() values.
  void apply(Row& x, size_t begin, size_t end) const {
    size_t length = weight.size();
    for (size_t first = begin; first < end; first += length) {
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
            (x[first + i] - mean) / std::sqrt(square + eps) * weight[i] +
            bias[i];
      }
    }
  }

  NormKind kind;
  double eps;
  Row weight, bias;
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

// Keys and values by layer, block and place.
class ReferenceCache : public KvCache {
 public:
  using KvCache::KvCache;
  void reserve(int num_blocks) override {
    blocks_ = std::max(blocks_, num_blocks);
  }
  int num_blocks() const override {
    return blocks_;
  }
  void copy_block(int from, int to) override {
    for (auto& layer : entries) {
      for (int i = 0; i < kKvBlockSize; ++i) {
        layer[{to, i}] = layer[{from, i}];
      }
    }
  }
  struct Entry {
    Row k, v;
  };
  std::vector<std::map<std::pair<int, int>, Entry>> entries{
      spec().layers.size()};

 private:
  int blocks_ = 0;
};

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
      return 0.5 * x *
             (1 +
              std::tanh(
                  std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::relu_squared:
      return std::pow(std::max(x, 0.0), 2);
  }
  return 0;
}

double cap(double x, double limit) {
  return limit > 0 ? limit * std::tanh(x / limit) : x;
}

class ReferenceBackend : public Backend {
 public:
  std::string description() const override {
    return "reference";
  }
  std::unique_ptr<Linear> prepare_linear(LinearWeights weights) override {
    int64_t out = 0;
    for (const MatrixWeight& part : weights.parts) {
      out += part.out;
    }
    return std::make_unique<ReferenceLinear>(weights, out);
  }
  std::unique_ptr<Embedding> prepare_embedding(
      EmbeddingWeights weights) override {
    return std::make_unique<ReferenceEmbedding>(weights);
  }
  std::unique_ptr<Norm> prepare_norm(NormWeights weights) override {
    return std::make_unique<ReferenceNorm>(weights);
  }
  std::unique_ptr<Rope> prepare_rope(RopeTable table) override {
    return std::make_unique<ReferenceRope>(std::move(table));
  }
  std::unique_ptr<KvCache> make_kv_cache(const KvCacheSpec& spec) override {
    return std::make_unique<ReferenceCache>(spec);
  }

  Tensor embed(const Step& step, const Embedding& table, float scale) override {
    const auto& own = static_cast<const ReferenceEmbedding&>(table);
    Rows out;
    for (const Segment& segment : step.segments) {
      for (int i = 0; i < segment.num_rows; ++i) {
        size_t token = size_t(step.tokens[size_t(segment.first_row + i)]);
        Row row = own.table[token];
        for (const Term& term : own.terms) {
          for (size_t c = 0; c < row.size(); ++c) {
            row[c] +=
                adapter_scale(segment, term.adapter) * term.matrix[token][c];
          }
        }
        for (double& value : row) {
          value *= double(scale);
        }
        out.push_back(std::move(row));
      }
    }
    return wrap(std::move(out), table.hidden());
  }

  Tensor norm(const Step&, const Tensor& x, const Norm& norm) override {
    Rows rows = rows_of(x);
    for (Row& row : rows) {
      static_cast<const ReferenceNorm&>(norm).apply(row, 0, row.size());
    }
    return wrap(std::move(rows), x.cols());
  }

  Tensor linear(
      const Step& step,
      const Tensor& x,
      const Linear& weight,
      const LinearOptions& options) override {
    Rows rows = rows_of(x);
    normalize(rows, options.norm);
    return wrap(finish(multiply(step, rows, weight), options), weight.out());
  }

  Tensor mlp(
      const Step& step,
      const Tensor& x,
      const MlpWeights& weights,
      const LinearOptions& options) override {
    Rows rows = rows_of(x);
    normalize(rows, options.norm);
    Rows inner = multiply(step, rows, *weights.up);
    for (Row& row : inner) {
      size_t width = weights.gated ? row.size() / 2 : row.size();
      for (size_t i = 0; i < width; ++i) {
        double gate = activate(weights.activation, row[i]);
        row[i] = weights.gated ? gate * row[i + width] : gate;
      }
      row.resize(width);
    }
    return wrap(
        finish(multiply(step, inner, *weights.down), options),
        weights.down->out());
  }

  Tensor attention(
      const Step& step,
      const Tensor& qkv,
      const AttentionArgs& args,
      KvCache& cache,
      int layer) override {
    auto& entries = static_cast<ReferenceCache&>(cache).entries[size_t(layer)];
    Rows out;
    for (const Segment& segment : step.segments) {
      Rows queries;
      for (int i = 0; i < segment.num_rows; ++i) {
        Row row = rows_of(qkv)[size_t(segment.first_row + i)];
        int64_t position = segment.position + i;
        size_t q_end = size_t(args.num_heads * args.head_dim);
        size_t k_end = q_end + size_t(args.num_kv_heads * args.head_dim);
        prepare(row, 0, q_end, args.q_norm, args, segment, position);
        prepare(row, q_end, k_end, args.k_norm, args, segment, position);
        auto at = [&](size_t index) { return row.begin() + int64_t(index); };
        entries[place(segment, position)] = {
            Row(at(q_end), at(k_end)), Row(at(k_end), row.end())};
        row.resize(q_end);
        queries.push_back(std::move(row));
      }
      for (int i = 0; i < segment.num_rows; ++i) {
        out.push_back(attend(
            queries[size_t(i)], segment, segment.position + i, args, entries));
      }
    }
    return wrap(std::move(out), int64_t(args.num_heads) * args.head_dim);
  }

  Tensor add(
      const Step&, const Tensor& x, const Tensor& y, float scale) override {
    Rows rows = rows_of(x);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t c = 0; c < rows[r].size(); ++c) {
        rows[r][c] += double(scale) * rows_of(y)[r][c];
      }
    }
    return wrap(std::move(rows), x.cols());
  }

  Tensor head(
      const Step& step, const Tensor& x, const HeadArgs& args) override {
    Rows rows = rows_of(x);
    normalize(rows, args.norm);
    Rows all = multiply(step, rows, *args.head);
    Rows out;
    for (int32_t row : step.output_rows) {
      out.push_back(all[size_t(row)]);
      for (double& value : out.back()) {
        value = cap(value * double(args.scale), double(args.softcap));
      }
    }
    return wrap(std::move(out), args.head->out());
  }

  void read(const Tensor& tensor, float* out) override {
    for (const Row& row : rows_of(tensor)) {
      for (double value : row) {
        *out++ = float(value);
      }
    }
  }

 private:
  using Entries = std::map<std::pair<int, int>, ReferenceCache::Entry>;

  static void normalize(Rows& rows, const Norm* norm) {
    if (norm != nullptr) {
      for (Row& row : rows) {
        static_cast<const ReferenceNorm*>(norm)->apply(row, 0, row.size());
      }
    }
  }

  static Rows multiply(const Step& step, const Rows& x, const Linear& weight) {
    const auto& own = static_cast<const ReferenceLinear&>(weight);
    Rows out(x.size(), Row(own.matrix.size()));
    for (const Segment& segment : step.segments) {
      for (int i = 0; i < segment.num_rows; ++i) {
        size_t r = size_t(segment.first_row + i);
        for (size_t o = 0; o < own.matrix.size(); ++o) {
          out[r][o] = own.bias[o] + dot(own.matrix[o], x[r]);
        }
        for (const Term& term : own.terms) {
          double scale = adapter_scale(segment, term.adapter);
          for (size_t o = 0; o < term.matrix.size(); ++o) {
            out[r][size_t(term.row_begin) + o] +=
                scale * dot(term.matrix[o], x[r]);
          }
        }
      }
    }
    return out;
  }

  static double dot(const Row& a, const Row& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      sum += a[i] * b[i];
    }
    return sum;
  }

  static Rows finish(Rows rows, const LinearOptions& options) {
    normalize(rows, options.output_norm);
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t c = 0; c < rows[r].size(); ++c) {
        rows[r][c] *= double(options.output_scale);
        if (options.residual != nullptr) {
          rows[r][c] += rows_of(*options.residual)[r][c];
        }
      }
    }
    return rows;
  }

  static void prepare(
      Row& row,
      size_t begin,
      size_t end,
      const Norm* norm,
      const AttentionArgs& args,
      const Segment& segment,
      int64_t position) {
    if (norm != nullptr) {
      static_cast<const ReferenceNorm*>(norm)->apply(row, begin, end);
    }
    if (args.rope != nullptr) {
      static_cast<const ReferenceRope*>(args.rope)->apply(
          row, begin, end, args.head_dim, segment, position);
    }
  }

  static std::pair<int, int> place(const Segment& segment, int64_t position) {
    return {
        segment.blocks[size_t(position / kKvBlockSize)],
        int(position % kKvBlockSize)};
  }

  static Row attend(
      const Row& query,
      const Segment& segment,
      int64_t position,
      const AttentionArgs& args,
      Entries& entries) {
    Row out(query.size());
    int64_t first =
        args.window > 0 ? std::max<int64_t>(0, position - args.window + 1) : 0;
    size_t dim = size_t(args.head_dim);
    for (int head = 0; head < args.num_heads; ++head) {
      size_t q_at = size_t(head) * dim;
      size_t kv_at = size_t(head / (args.num_heads / args.num_kv_heads)) * dim;
      Row scores;
      for (int64_t other = first; other <= position; ++other) {
        const Row& k = entries[place(segment, other)].k;
        double score = 0;
        for (size_t i = 0; i < dim; ++i) {
          score += query[q_at + i] * k[kv_at + i];
        }
        scores.push_back(cap(score * double(args.scale), double(args.softcap)));
      }
      double sum =
          args.sinks.empty() ? 0 : std::exp(double(args.sinks[size_t(head)]));
      for (double& score : scores) {
        score = std::exp(score);
        sum += score;
      }
      for (int64_t other = first; other <= position; ++other) {
        const Row& v = entries[place(segment, other)].v;
        double share = scores[size_t(other - first)] / sum;
        for (size_t i = 0; i < dim; ++i) {
          out[q_at + i] += share * v[kv_at + i];
        }
      }
    }
    return out;
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace mlxcel::testing
