#include "adapters/fuse.h"

#include "core/error.h"
#include "core/row_kernels.h"

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

// A matrix as f32 [rows, cols], transposed on the way when stored [cols, rows].
std::vector<float> read_matrix(
    const WeightTensor& tensor, int64_t rows, int64_t cols, bool transposed) {
  std::vector<float> out(size_t(rows * cols));
  if (!transposed) {
    convert_to_f32(tensor.dtype, tensor.data, rows * cols, out.data());
    return out;
  }
  std::vector<float> line(size_t(rows) * size_t(cols));
  convert_to_f32(tensor.dtype, tensor.data, rows * cols, line.data());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      out[size_t(i * cols + j)] = line[size_t(j * rows + i)];
    }
  }
  return out;
}

// A term ready to add: left [count, rank] with the factor in it, right
// [rank, in].
struct ReadyTerm {
  int64_t first, count, rank;
  std::vector<float> left, right;
};

ReadyTerm make_ready(const Term& term, int64_t in) {
  const ResolvedPair& pair = *term.pair;
  Factors factors = factors_of(pair);
  ReadyTerm out{term.first, term.count, pair.rank, {}, {}};
  out.right = read_matrix(*factors.right, pair.rank, in, factors.transposed);
  std::vector<float> left =
      read_matrix(*factors.left, pair.rows, pair.rank, factors.transposed);
  auto from = left.begin() + term.pair_first * pair.rank;
  out.left.assign(from, from + term.count * pair.rank);
  for (float& value : out.left) {
    value *= term.factor;
  }
  return out;
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
  int64_t in = weight.dim(1);
  int64_t block = std::clamp<int64_t>(kBytes / (in * 4), 4, 64);
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
  size_t done = 0;
  // A head that shares the embedding's bytes gets the same new ones. Tensors
  // may share bytes and differ in their terms: surgery can put one tensor in
  // several places.
  std::map<std::pair<const std::byte*, std::vector<Term>>, WeightTensor> made;
  for (const auto& [key, terms] : changes) {
    WeightTensor old = weights.at(key);
    auto twin = made.find({old.data, terms});
    if (twin == made.end()) {
      std::byte* out = nullptr;
      WeightTensor fused = make_weight(old.dtype, old.shape, &out);
      std::vector<ReadyTerm> ready;
      for (const Term& term : terms) {
        ready.push_back(make_ready(term, old.dim(1)));
      }
      pool.run([&](int thread) {
        auto [begin, end] = split_range(old.dim(0), thread, pool.size(), 4);
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
