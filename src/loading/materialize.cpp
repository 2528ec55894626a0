#include "loading/materialize.h"

#include "core/error.h"
#include "core/thread_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>
#include <utility>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14
#endif

namespace mlxcel {

namespace {

// Large enough that the system call costs nothing beside it, small enough that
// threads finish together.
constexpr uintptr_t kChunkBytes = uintptr_t(8) << 20;

struct Range {
  uintptr_t begin = 0, end = 0;  // whole pages
};

// The pages of the mapped tensors in chunks, none twice.
std::vector<Range> page_chunks(
    const std::vector<WeightTensor>& tensors, uintptr_t page) {
  std::vector<Range> pages;
  for (const WeightTensor& tensor : tensors) {
    if (tensor.mapped() && tensor.bytes > 0) {
      auto begin = reinterpret_cast<uintptr_t>(tensor.data);
      pages.push_back(
          {begin / page * page,
           (begin + tensor.bytes + page - 1) / page * page});
    }
  }
  std::sort(pages.begin(), pages.end(), [](const Range& a, const Range& b) {
    return a.begin < b.begin;
  });
  std::vector<Range> chunks;
  uintptr_t done = 0;
  for (Range range : pages) {
    range.begin = std::max(range.begin, done);
    done = std::max(done, range.end);
    while (range.begin < range.end) {
      uintptr_t end = std::min(range.end, range.begin + kChunkBytes);
      chunks.push_back({range.begin, end});
      range.begin = end;
    }
  }
  return chunks;
}

void read_in(const Range& range, uintptr_t page) {
  auto* data = reinterpret_cast<std::byte*>(range.begin);
  if (::madvise(data, range.end - range.begin, MADV_POPULATE_READ) == 0) {
    return;
  }
  for (uintptr_t at = range.begin; at < range.end; at += page) {
    // volatile: the read is the purpose.
    (void)*reinterpret_cast<const volatile unsigned char*>(at);
  }
}

}  // namespace

bool lazy_materialization() {
  const char* value = std::getenv("MLXCEL_WEIGHT_MATERIALIZATION");
  std::string_view choice = value == nullptr ? "" : value;
  if (choice.empty() || choice == "eager") {
    return false;
  }
  if (choice == "lazy") {
    return true;
  }
  throw UsageError(
      cat("MLXCEL_WEIGHT_MATERIALIZATION is \"", choice, "\""),
      "",
      "known values are eager and lazy");
}

void materialize(
    const std::vector<WeightTensor>& tensors,
    int threads,
    const std::function<void(double done)>& progress) {
  auto page = uintptr_t(::sysconf(_SC_PAGESIZE));
  std::vector<Range> chunks = page_chunks(tensors, page);
  if (chunks.empty()) {
    return;
  }
  std::atomic<size_t> next{0};
  ThreadPool pool(threads);
  pool.run([&](int thread) {
    for (size_t i = next++; i < chunks.size(); i = next++) {
      read_in(chunks[i], page);
      if (thread == 0 && progress) {
        progress(double(i + 1) / double(chunks.size()));
      }
    }
  });
  if (progress) {
    progress(1);
  }
}

}  // namespace mlxcel
