#include "adapters/fuse.h"

#include "core/error.h"
#include "core/row_kernels.h"
#include "io/weight_slabs.h"

#include <algorithm>
#include <atomic>
#include <compare>
#include <map>
#include <utility>

namespace mlxcel {

namespace {

// A pair's share of one tensor: rows [first, first + count) of it get rows
// [pair_first, ...) of the pair's product.
struct Term {
  const ResolvedPair* pair = nullptr;
  float factor = 0;
  int64_t first = 0, count = 0, pair_first = 0;
  auto operator<=>(const Term&) const = default;
};

// What a pair's two matrices are as factors of the delta [rows, in]: the left
// one [rows, rank] and the right one [rank, in], each maybe stored transposed.
struct Factors {
  const WeightTensor* left;
  const WeightTensor* right;
  bool transposed;
};

Factors factors_of(const ResolvedPair& pair) {
  switch (pair.layout) {
    case PairLayout::embedding:
      return {&pair.a, &pair.b, false};
    case PairLayout::rank_first:
      return {&pair.b, &pair.a, false};
    case PairLayout::linear_first:
      break;
  }
  return {&pair.b, &pair.a, true};
}

// Rows [begin, end) of a matrix [rows, cols] as f32 times `factor`, into
// `out` at stride cols; `transposed`: it is stored as [cols, rows].
void read_rows(
    const WeightTensor& tensor,
    bool transposed,
    int64_t begin,
    int64_t end,
    float factor,
    float* out) {
  int64_t cols = tensor.dim(transposed ? 0 : 1);
  size_t element = size_of(tensor.dtype);
  int64_t count = (end - begin) * cols;
  if (!transposed) {
    convert_to_f32(
        tensor.dtype, tensor.data + size_t(begin * cols) * element, count, out);
    for (int64_t i = 0; i < count && factor != 1; ++i) {
      out[i] *= factor;
    }
    return;
  }
  int64_t stride = tensor.dim(1);
  std::vector<float> line(static_cast<size_t>(end - begin));
  for (int64_t j = 0; j < cols; ++j) {
    convert_to_f32(
        tensor.dtype,
        tensor.data + size_t(j * stride + begin) * element,
        end - begin,
        line.data());
    for (int64_t i = 0; i < end - begin; ++i) {
      out[i * cols + j] = line[size_t(i)] * factor;
    }
  }
}

// Columns [begin, end) of a matrix [rows, cols] as f32, into `out` at stride
// cols.
void read_cols(
    const WeightTensor& tensor,
    bool transposed,
    int64_t begin,
    int64_t end,
    float* out) {
  int64_t rows = tensor.dim(transposed ? 1 : 0);
  int64_t cols = tensor.dim(transposed ? 0 : 1);
  size_t element = size_of(tensor.dtype);
  if (!transposed) {
    for (int64_t i = 0; i < rows; ++i) {
      convert_to_f32(
          tensor.dtype,
          tensor.data + size_t(i * cols + begin) * element,
          end - begin,
          out + i * cols + begin);
    }
    return;
  }
  // Some rows of the stored matrix at a time, while they are in the cache.
  constexpr int64_t kBlock = 64;
  std::vector<float> block(size_t(kBlock * rows));
  for (int64_t j = begin; j < end; j += kBlock) {
    int64_t count = std::min(kBlock, end - j);
    convert_to_f32(
        tensor.dtype,
        tensor.data + size_t(j * rows) * element,
        count * rows,
        block.data());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < count; ++k) {
        out[r * cols + j + k] = block[size_t(k * rows + r)];
      }
    }
  }
}

// A term ready to add: left [count, rank] with the factor in it, right
// [rank, in].
struct ReadyTerm {
  const Term* term = nullptr;
  int64_t first, count, rank;
  std::vector<float> left, right;
};

ReadyTerm make_ready(const Term& term, int64_t in) {
  int64_t rank = term.pair->rank;
  ReadyTerm out{&term, term.first, term.count, rank, {}, {}};
  out.left.resize(size_t(term.count * rank));
  out.right.resize(size_t(rank * in));
  return out;
}

// A thread's share of the factors: the left one's rows for its own rows
// [begin, end) of the weight, and a part of the right one, which the others
// need too.
void read_factors(
    ReadyTerm& ready,
    int64_t in,
    int64_t begin,
    int64_t end,
    int thread,
    int threads) {
  const Term& term = *ready.term;
  Factors factors = factors_of(*term.pair);
  int64_t from = std::max(begin, ready.first);
  int64_t to = std::min(end, ready.first + ready.count);
  if (from < to) {
    int64_t shift = term.pair_first - ready.first;
    read_rows(
        *factors.left,
        factors.transposed,
        from + shift,
        to + shift,
        term.factor,
        ready.left.data() + (from - ready.first) * ready.rank);
  }
  auto [left, right] = split_range(in, thread, threads, 64);
  read_cols(
      *factors.right, factors.transposed, left, right, ready.right.data());
}

// Rows [begin, end) of `weight` plus the terms, into `out`.
void fuse_rows(
    const WeightTensor& weight,
    const std::vector<ReadyTerm>& terms,
    int64_t begin,
    int64_t end,
    std::byte* out) {
  // As many rows as stay in the first-level cache with their sums.
  constexpr int64_t kBytes = 32 * 1024;
  int64_t in = weight.shape.back();
  // The kernel takes four rows at a time.
  int64_t block = std::clamp<int64_t>(kBytes / (in * 4) / 4 * 4, 4, 64);
  size_t stride = size_t(in) * size_of(weight.dtype);
  std::vector<float> sums(size_t(block * in));
  for (int64_t row = begin; row < end; row += block) {
    int64_t rows = std::min(block, end - row);
    convert_to_f32(
        weight.dtype,
        weight.data + size_t(row) * stride,
        rows * in,
        sums.data());
    for (const ReadyTerm& term : terms) {
      int64_t from = std::max(row, term.first);
      int64_t to = std::min(row + rows, term.first + term.count);
      if (from < to) {
        row_kernels().add_low_rank(
            sums.data() + (from - row) * in,
            to - from,
            in,
            term.left.data() + (from - term.first) * term.rank,
            term.rank,
            term.right.data());
      }
    }
    convert_from_f32(
        sums.data(), rows * in, weight.dtype, out + size_t(row) * stride);
  }
}

void check_plain(
    const std::string& key,
    const WeightTensor& weight,
    const std::string& folder) {
  if (!is_float(weight.dtype)) {
    throw AdapterError(
        cat("cannot fuse adapter ", folder),
        cat("base weight ", key, " is quantized (", weight.dtype, ")"),
        "serve it unfused with --lora, or fuse into an unquantized "
        "checkpoint");
  }
}

std::map<std::string, std::vector<Term>> collect(
    const std::vector<ScaledAdapter>& adapters,
    const AdapterBase& base,
    const WeightMap& weights) {
  std::vector<ScaledAdapter> ordered = adapters;
  std::stable_sort(
      ordered.begin(), ordered.end(), [](const auto& x, const auto& y) {
        return std::pair(x.adapter->digest, x.scale) <
               std::pair(y.adapter->digest, y.scale);
      });
  std::map<std::string, std::vector<Term>> out;
  for (const auto& [adapter, scale] : ordered) {
    for (const ResolvedPair& pair : adapter->pairs) {
      std::vector<std::pair<std::string, Term>> terms;
      for (const Target& target : pair.targets) {
        terms.push_back(
            {target.rows.stem + ".weight",
             {&pair,
              float(adapter->factor * scale),
              target.rows.first,
              target.rows.count,
              target.named_first}});
      }
      if (pair.on_embedding && base.spec.head == HeadKind::tied) {
        if (auto head = base.names.locate("head", weights);
            head && head->stem != pair.targets.front().rows.stem) {
          terms.push_back({head->stem + ".weight", terms.front().second});
        }
      }
      for (auto& [key, term] : terms) {
        check_plain(key, weights.at(key), adapter->folder);
        if (scale != 0) {
          out[key].push_back(term);
        }
      }
    }
  }
  return out;
}

}  // namespace

void fuse_adapters(
    const std::vector<ScaledAdapter>& adapters,
    const AdapterBase& base,
    WeightMap& weights,
    ThreadPool& pool,
    const std::function<void(double done)>& progress) {
  std::map<std::string, std::vector<Term>> changes =
      collect(adapters, base, weights);
  size_t done = 0, bytes = 0;
  for (const auto& [key, terms] : changes) {
    bytes += weights.at(key).bytes;
  }
  WeightSlabs slabs(bytes);
  // A head that shares the embedding's bytes gets the same new ones. Tensors
  // may share bytes and differ in their terms: surgery can put one tensor in
  // several places.
  std::map<std::pair<const std::byte*, std::vector<Term>>, WeightTensor> made;
  for (const auto& [key, terms] : changes) {
    WeightTensor old = weights.at(key);
    auto twin = made.find({old.data, terms});
    if (twin == made.end()) {
      std::byte* out = nullptr;
      WeightTensor fused = slabs.make(old.dtype, old.shape, &out);
      // A stack of matrices is one of all their rows.
      int64_t in = old.shape.back(), rows = element_count(old.shape) / in;
      std::vector<ReadyTerm> ready;
      for (const Term& term : terms) {
        ready.push_back(make_ready(term, in));
      }
      pool.run([&](int thread) {
        auto [begin, end] = split_range(rows, thread, pool.size(), 4);
        for (ReadyTerm& term : ready) {
          read_factors(term, in, begin, end, thread, pool.size());
        }
        pool.barrier();
        fuse_rows(old, ready, begin, end, out);
      });
      twin = made.emplace(std::pair(old.data, terms), std::move(fused)).first;
    }
    weights.set(key, twin->second);
    if (progress) {
      progress(double(++done) / double(changes.size()));
    }
  }
}

}  // namespace mlxcel
