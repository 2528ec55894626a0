#include "cli/machine_peak.h"

#include "core/cpu_features.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <numeric>

namespace mlxcel::cli {

namespace {

using Clock = std::chrono::steady_clock;

double elapsed_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Far more than any cache holds.
constexpr size_t kBufferBytes = 256 << 20;
constexpr size_t kPage = 4096;
constexpr size_t kHugePage = 2 << 20;
constexpr int kPasses = 8;

PeakKernel best_kernel() {
#if defined(__x86_64__)
  switch (choose_isa()) {
    case Isa::avx512_bf16:
      return peak_kernel_avx512bf16();
    case Isa::avx512:
      return peak_kernel_avx512();
    case Isa::avx2:
      return peak_kernel_avx2();
    default:
      break;
  }
#endif
  return peak_kernel_portable();
}

}  // namespace

PeakKernel peak_kernel_portable() {
  constexpr int kRounds = 4096, kSums = 16;
  return {
      "f32 multiply and add",
      2.0 * kRounds * kSums,
      [](float* sink) {
        float sums[kSums], factors[kSums];
        std::memcpy(sums, sink, sizeof sums);
        std::memcpy(factors, sink, sizeof factors);
        for (int i = 0; i < kRounds; ++i) {
          for (int j = 0; j < kSums; ++j) {
            sums[j] = sums[j] * 0.5f + factors[j];
          }
        }
        std::memcpy(sink, sums, sizeof sums);
      },
      [](const std::byte* data, size_t bytes) {
        uint64_t sums[8] = {};
        for (size_t i = 0; i < bytes; i += sizeof sums) {
          uint64_t line[8];
          std::memcpy(line, data + i, sizeof line);
          for (int j = 0; j < 8; ++j) {
            sums[j] ^= line[j];
          }
        }
        return std::accumulate(sums, sums + 8, uint64_t(0));
      }};
}

BandwidthProbe::BandwidthProbe(ThreadPool& pool)
    : pool_(pool),
      data_(static_cast<std::byte*>(
          ::operator new(kBufferBytes, std::align_val_t(kHugePage)))) {
#ifdef MADV_HUGEPAGE
  // A hint; failing is harmless.
  ::madvise(data_, kBufferBytes, MADV_HUGEPAGE);
#endif
  std::memset(data_, 1, kBufferBytes);
}

BandwidthProbe::~BandwidthProbe() {
  ::operator delete(data_, std::align_val_t(kHugePage));
}

double BandwidthProbe::measure() {
  PeakKernel kernel = best_kernel();
  std::atomic<uint64_t> sink{0};
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    Clock::time_point begin = Clock::now();
    pool_.run([&](int thread) {
      auto [first, last] =
          split_range(kBufferBytes, thread, pool_.size(), kPage);
      sink.fetch_xor(
          kernel.read(data_ + first, size_t(last - first)),
          std::memory_order_relaxed);
    });
    best = std::max(best, double(kBufferBytes) / elapsed_since(begin));
  }
  return best;
}

ComputePeak measure_compute(ThreadPool& pool) {
  PeakKernel kernel = best_kernel();
  ComputePeak peak{.kind = kernel.kind};
  constexpr int kCalls = 2000;
  for (int round = 0; round < 5; ++round) {
    Clock::time_point begin = Clock::now();
    pool.run([&](int) {
      alignas(64) float sink[16] = {};
      for (int call = 0; call < kCalls; ++call) {
        kernel.run(sink);
      }
    });
    double operations = kernel.operations * kCalls * pool.size();
    peak.rate = std::max(peak.rate, operations / elapsed_since(begin));
  }
  return peak;
}

}  // namespace mlxcel::cli
