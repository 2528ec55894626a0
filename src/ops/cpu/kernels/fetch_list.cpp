#include "ops/cpu/kernels/fetch_list.h"

#include <algorithm>

namespace mlxcel::cpu {

namespace {

constexpr size_t kLine = 64;
constexpr int64_t kUnit = 256;

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

void FetchList::finish() {
  fetch(lines_);
}

void FetchList::fetch(int64_t lines) {
  while (lines > 0 && piece_ < pieces_.size()) {
    const Piece& piece = pieces_[piece_];
    const std::byte* at = piece.at + size_t(row_) * piece.stride + offset_;
    auto left = int64_t((piece.bytes - offset_ + kLine - 1) / kLine);
    int64_t count = std::min(lines, left);
    for (int64_t i = 0; i < count; ++i) {
      // Into the first cache: those for the second are dropped sooner when many
      // are under way (measured on Zen 5).
      __builtin_prefetch(at + i * int64_t(kLine), 0, 3);
    }
    lines -= count;
    lines_ -= count;
    offset_ += size_t(count) * kLine;
    if (count == left) {
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
    lines_ = 0;
  }
}

}  // namespace mlxcel::cpu
