// The adapter terms of a product. With generated rows alone they are computed
// beside it: their matrices come from memory once and are used once, and a
// product of several rows leaves the memory time for that. So a thread first
// computes its pieces of A x, each fetched during a share of the product, and
// after a barrier adds B t block by block, likewise fetched.
#include "ops/cpu/cpu_linear.h"

#include <algorithm>

namespace mlxcel::cpu {

namespace {

// Outputs whose rows of B are fetched together: small enough for the second
// cache, long enough for runs of memory where B lies [rank, out].
constexpr int64_t kUpBlock = 512;
// What decode kernels take at a time.
constexpr int64_t kGrain = 32;

// Calls f with the parts of the ranges, one after the other as if they were
// one, that hold [begin, end).
template <typename Function>
void for_parts(
    std::span<const DecodeRange> ranges,
    int64_t begin,
    int64_t end,
    Function f) {
  int64_t first = 0;
  for (const DecodeRange& range : ranges) {
    int64_t count = range.end - range.begin;
    int64_t b = std::max<int64_t>(begin - first, 0);
    int64_t e = std::min(end - first, count);
    if (b < e) {
      DecodeRange part = range;
      part.begin = range.begin + b;
      part.end = range.begin + e;
      part.y += b;
      f(part);
    }
    first += count;
  }
}

}  // namespace

void Product::place_terms() {
  terms_in_decode_ = plan_.prompt_rows == 0;
  ranges_ = int((linear_.in() + kTermColumns - 1) / kTermColumns);
  for (size_t i = 0; i < terms_.size(); ++i) {
    for (size_t j = 0; j < terms_[i].rows.size(); ++j) {
      uses_.push_back({int(i), int(j), values_});
      values_ += terms_[i].term->rank;
    }
  }
  int copies = terms_in_decode_ ? context_.pool.size() : 1;
  term_values_ = std::make_unique<Scratch>(
      context_, size_t(values_ * (ranges_ + copies)) * sizeof(float));
}

std::span<float> Product::piece(int index) const {
  const TermUse& use = uses_[size_t(index / ranges_)];
  int64_t rank = terms_[size_t(use.term)].term->rank;
  auto* memory = reinterpret_cast<float*>(term_values_->data());
  return {memory + use.at * ranges_ + index % ranges_ * rank, size_t(rank)};
}

float* Product::values(int copy) const {
  return reinterpret_cast<float*>(term_values_->data()) +
         values_ * (ranges_ + copy);
}

void Product::down(int thread, int index) const {
  const TermUse& use = uses_[size_t(index / ranges_)];
  const ActiveTerm& active = terms_[size_t(use.term)];
  int64_t begin = index % ranges_ * kTermColumns;
  term_down(
      linear_.kernels(),
      *active.term,
      linear_.in(),
      begin,
      std::min(begin + kTermColumns, linear_.in()),
      term_input(thread, active.rows[size_t(use.user)].first),
      piece(index).data());
}

void Product::sum_pieces(const TermUse& use, float* out) const {
  int first = int(&use - uses_.data()) * ranges_;
  std::span<float> sum = piece(first);
  std::copy(sum.begin(), sum.end(), out + use.at);
  for (int r = 1; r < ranges_; ++r) {
    std::span<float> next = piece(first + r);
    for (size_t i = 0; i < next.size(); ++i) {
      out[use.at + int64_t(i)] += next[i];
    }
  }
}

void Product::terms_of_all_rows(int thread) const {
  int threads = context_.pool.size();
  for (size_t u = 0; u < uses_.size(); ++u) {
    if (uses_[u].at * threads / values_ != thread) {
      continue;
    }
    for (int r = 0; r < ranges_; ++r) {
      down(thread, int(u) * ranges_ + r);
    }
    sum_pieces(uses_[u], values(0));
  }
  context_.pool.barrier();
}

void Product::fetch_down(int index, FetchList& list) const {
  const TermUse& use = uses_[size_t(index / ranges_)];
  const LowRankTerm& term = *terms_[size_t(use.term)].term;
  size_t element = size_of(term.a.dtype), rank = size_t(term.rank);
  auto begin = size_t(index % ranges_) * size_t(kTermColumns);
  size_t end = std::min(begin + size_t(kTermColumns), size_t(linear_.in()));
  if (term.rank_first) {
    list.add(
        term.a.data + begin * element,
        (end - begin) * element,
        term.rank,
        size_t(linear_.in()) * element);
  } else {
    size_t stride = rank * element;
    list.add(term.a.data + begin * stride, (end - begin) * stride, 1, 0);
  }
}

void Product::fetch_up(int64_t begin, int64_t end, FetchList& list) const {
  for (const ActiveTerm& active : terms_) {
    const LowRankTerm& term = *active.term;
    int64_t b = std::max(begin - term.row_begin, int64_t(0));
    int64_t e = std::min(end - term.row_begin, term.rows);
    if (b >= e) {
      continue;
    }
    size_t element = size_of(term.b.dtype);
    if (term.rank_first) {
      size_t stride = size_t(term.rank) * element;
      list.add(term.b.data + size_t(b) * stride, size_t(e - b) * stride, 1, 0);
    } else {
      list.add(
          term.b.data + size_t(b) * element,
          size_t(e - b) * element,
          term.rank,
          size_t(term.rows) * element);
    }
  }
}

void Product::add_terms(
    const float* values,
    int row,
    int rows,
    int64_t begin,
    int64_t end,
    float* y,
    int64_t ldy,
    float* scratch) const {
  auto use = uses_.begin();
  for (const ActiveTerm& active : terms_) {
    auto first = use;
    use += int64_t(active.rows.size());
    const LowRankTerm& term = *active.term;
    int64_t b = std::max(begin, term.row_begin);
    int64_t e = std::min(end, term.row_begin + term.rows);
    if (b >= e) {
      continue;
    }
    auto user = std::lower_bound(
        active.rows.begin(),
        active.rows.end(),
        row,
        [](const auto& entry, int value) { return entry.first < value; });
    for (; user != active.rows.end() && user->first < row + rows; ++user) {
      term_up(
          linear_.kernels(),
          term,
          b - term.row_begin,
          e - term.row_begin,
          values + first[user - active.rows.begin()].at,
          user->second,
          y + (user->first - row) * ldy + (b - begin),
          scratch);
    }
  }
}

void Product::decode_with_terms(
    int thread, std::span<const DecodeRange> ranges) const {
  int threads = context_.pool.size();
  int pieces = int(uses_.size()) * ranges_;
  // Pieces are dealt out by what they read.
  auto owner = [&](int index) {
    auto* memory = reinterpret_cast<float*>(term_values_->data());
    return int((piece(index).data() - memory) * threads / (values_ * ranges_));
  };
  int first = 0;
  while (first < pieces && owner(first) < thread) {
    ++first;
  }
  int last = first;
  while (last < pieces && owner(last) == thread) {
    ++last;
  }

  int64_t outputs = 0, down_floats = 0, up_floats = 0;
  for (const DecodeRange& range : ranges) {
    outputs += range.end - range.begin;
  }
  for (const ActiveTerm& active : terms_) {
    down_floats += active.term->rank * linear_.in();
    up_floats += active.term->rank * active.term->rows;
  }
  // The share of the product that goes with the first half.
  int64_t early = int64_t(
      double(outputs) * double(down_floats) / double(down_floats + up_floats));

  FetchList fetch;
  int64_t done = 0;
  auto multiply_until = [&](int64_t end) {
    end = end >= outputs ? outputs : std::max(done, end / kGrain * kGrain);
    fetch.spread(end - done);
    for_parts(ranges, done, end, [&](const DecodeRange& part) {
      multiply(thread, part, &fetch, nullptr);
    });
    fetch.finish();
    done = end;
  };
  for (int i = first; i < last; ++i) {
    // Rows that share an adapter find its piece in the cache.
    bool same = i - ranges_ >= first && uses_[size_t(i / ranges_)].term ==
                                            uses_[size_t(i / ranges_ - 1)].term;
    if (!same) {
      fetch_down(i, fetch);
    }
    multiply_until(early * (i - first + 1) / (last - first));
    down(thread, i);
  }
  multiply_until(early);  // of threads without a piece
  context_.pool.barrier();
  float* t = values(thread);
  for (const TermUse& use : uses_) {
    sum_pieces(use, t);
  }

  const int64_t before = done;
  float scratch[kUpBlock];
  for (int64_t block = 0; block < outputs; block += kUpBlock) {
    int64_t end = std::min(block + kUpBlock, outputs);
    for_parts(ranges, block, end, [&](const DecodeRange& part) {
      fetch_up(part.begin, part.end, fetch);
    });
    int64_t until = before + (outputs - before) * end / outputs;
    multiply_until(std::max(until, end));
    for_parts(ranges, block, end, [&](const DecodeRange& part) {
      add_terms(
          t,
          plan_.prompt_rows,
          plan_.decode_rows,
          part.begin,
          part.end,
          part.y,
          part.ldy,
          scratch);
    });
  }
}

}  // namespace mlxcel::cpu
