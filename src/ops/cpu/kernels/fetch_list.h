// Memory that a thread reads after a product, brought near by the product's
// kernel: with several rows of activations it computes longer than it reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mlxcel::cpu {

// No member is inline: kernels for other instruction sets include this.
class FetchList {
 public:
  FetchList();
  ~FetchList();
  FetchList(const FetchList&) = delete;
  FetchList& operator=(const FetchList&) = delete;

  // `rows` rows of `bytes`, `stride` apart.
  void add(const std::byte* at, size_t bytes, int64_t rows, size_t stride);
  // Lines left.
  int64_t lines() const;
  // Forgets the rest.
  void clear();
  // Spreads what the list holds, or so many lines of it, over the next
  // `outputs`.
  void spread(int64_t outputs);
  void spread(int64_t outputs, int64_t lines);
  // By the kernel, after part / parts of the work on `outputs`.
  void pass(int64_t outputs, int64_t part, int64_t parts);
  // The same for a kernel that fetches the lines itself, `each` at each of
  // `steps` before the work's end, at[0 : each * steps] in turn. Valid until
  // the next call.
  struct Lines {
    const std::byte* const* at = nullptr;
    int64_t each = 0;
  };
  Lines take(int64_t outputs, int64_t part, int64_t parts, int64_t steps);
  // Fetches the rest.
  void finish();

 private:
  struct Piece {
    const std::byte* at;
    size_t bytes;
    int64_t rows;
    size_t stride;
  };
  void fetch(int64_t lines);
  void list(size_t lines);

  std::vector<Piece> pieces_;
  size_t piece_ = 0, offset_ = 0;  // where to go on listing
  int64_t row_ = 0;
  // Lines in turn, some at a time: what is left of them begins at next_.
  std::vector<const std::byte*> listed_;
  size_t next_ = 0, listed_end_ = 0;
  int64_t lines_ = 0;              // left, with those that are listed
  int64_t rate_ = 0, credit_ = 0;  // lines, times kUnit
};

}  // namespace mlxcel::cpu
