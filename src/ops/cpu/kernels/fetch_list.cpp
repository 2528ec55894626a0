#include "ops/cpu/kernels/fetch_list.h"

#include <algorithm>

namespace mlxcel::cpu {

namespace {

constexpr size_t kLine = 64;
constexpr int64_t kUnit = 256;
// Addresses that are written at once: few calls cross a list's end, and the
// list stays in the first cache.
constexpr size_t kListed = 512;

}  // namespace

FetchList::FetchList() = default;
FetchList::~FetchList() = default;

void FetchList::add(
    const std::byte* at, size_t bytes, int64_t rows, size_t stride) {
  if (bytes == 0 || rows == 0) {
    return;
  }
  if (size_t(rows) > 1 && stride == bytes) {
    bytes *= size_t(rows);
    rows = 1;
  }
  // Rows begin anywhere in a line.
  size_t skew = reinterpret_cast<uintptr_t>(at) % kLine;
  pieces_.push_back({at - skew, bytes + skew, rows, stride});
  lines_ += int64_t((bytes + skew + kLine - 1) / kLine) * rows;
}

int64_t FetchList::lines() const {
  return lines_;
}

void FetchList::clear() {
  pieces_.clear();
  piece_ = 0;
  offset_ = 0;
  row_ = 0;
  next_ = listed_end_ = 0;
  lines_ = 0;
}

void FetchList::spread(int64_t outputs) {
  spread(outputs, lines_);
}

void FetchList::spread(int64_t outputs, int64_t lines) {
  rate_ = outputs > 0 ? (lines * kUnit + outputs - 1) / outputs : 0;
  credit_ = 0;
}

void FetchList::pass(int64_t outputs, int64_t part, int64_t parts) {
  credit_ += outputs * rate_ * part / parts;
  fetch(credit_ / kUnit);
  credit_ %= kUnit;
}

FetchList::Lines FetchList::take(
    int64_t outputs, int64_t part, int64_t parts, int64_t steps) {
  credit_ += outputs * rate_ * part / parts;
  if (lines_ == 0 || credit_ < kUnit) {
    return {};
  }
  int64_t each = (credit_ / kUnit + steps - 1) / steps;
  int64_t count = each * steps;
  // What whole lines a step bring early is owed by later calls.
  credit_ -= count * kUnit;
  if (int64_t(listed_end_ - next_) < count) {
    list(size_t(count));
  }
  Lines lines{listed_.data() + next_, each};
  lines_ -= std::min(count, lines_);
  next_ = std::min(next_ + size_t(count), listed_end_);
  return lines;
}

void FetchList::finish() {
  fetch(lines_);
}

void FetchList::fetch(int64_t lines) {
  lines = std::min(lines, lines_);
  lines_ -= lines;
  while (lines > 0) {
    if (next_ == listed_end_) {
      list(1);
    }
    size_t end = std::min(next_ + size_t(lines), listed_end_);
    lines -= int64_t(end - next_);
    for (; next_ < end; ++next_) {
      // Into the first cache: those for the second are dropped sooner when many
      // are under way (measured on Zen 5).
      __builtin_prefetch(listed_[next_], 0, 3);
    }
  }
}

// Lists more lines, until there are at least so many; after the last one it
// stands again.
void FetchList::list(size_t lines) {
  std::copy(
      listed_.begin() + ptrdiff_t(next_),
      listed_.begin() + ptrdiff_t(listed_end_),
      listed_.begin());
  size_t count = listed_end_ - next_, most = std::max(lines, kListed);
  if (listed_.size() < most) {
    listed_.resize(most);
  }
  const std::byte** to = listed_.data();
  while (count < most && piece_ < pieces_.size()) {
    const Piece& piece = pieces_[piece_];
    const std::byte* at = piece.at + size_t(row_) * piece.stride + offset_;
    size_t left = (piece.bytes - offset_ + kLine - 1) / kLine;
    size_t run = std::min(most - count, left);
    for (size_t i = 0; i < run; ++i) {
      to[count + i] = at + i * kLine;
    }
    count += run;
    offset_ += run * kLine;
    if (run == left) {
      offset_ = 0;
      if (++row_ == piece.rows) {
        row_ = 0;
        ++piece_;
      }
    }
  }
  if (piece_ == pieces_.size()) {
    pieces_.clear();
    piece_ = 0;
  }
  next_ = 0;
  listed_end_ = count;
  if (count > 0 && count < lines) {
    std::fill(to + count, to + lines, to[count - 1]);
  }
}

}  // namespace mlxcel::cpu
