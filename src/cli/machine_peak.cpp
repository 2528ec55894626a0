#include "cli/machine_peak.h"

#include "core/cpu_features.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <vector>

namespace mlxcel::cli {

namespace {

using Clock = std::chrono::steady_clock;

double elapsed_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Far more than any cache holds.
constexpr size_t kBufferBytes = 256 << 20;

double read_bandwidth(ThreadPool& pool) {
  std::vector<uint64_t> buffer(kBufferBytes / sizeof(uint64_t), 1);
  std::atomic<uint64_t> sink{0};
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    Clock::time_point begin = Clock::now();
    pool.run([&](int thread) {
      auto [first, last] =
          split_range(int64_t(buffer.size()), thread, pool.size(), 64);
      uint64_t sums[8] = {};
      for (int64_t i = first; i + 8 <= last; i += 8) {
        for (int64_t j = 0; j < 8; ++j) {
          sums[j] ^= buffer[size_t(i + j)];
        }
      }
      for (uint64_t sum : sums) {
        sink.fetch_xor(sum, std::memory_order_relaxed);
      }
    });
    best = std::max(best, double(kBufferBytes) / elapsed_since(begin));
  }
  return best;
}

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
  return {"f32 multiply and add", 2.0 * kRounds * kSums, [](float* sink) {
            float sums[kSums], factors[kSums];
            std::memcpy(sums, sink, sizeof sums);
            std::memcpy(factors, sink, sizeof factors);
            for (int i = 0; i < kRounds; ++i) {
              for (int j = 0; j < kSums; ++j) {
                sums[j] = sums[j] * 0.5f + factors[j];
              }
            }
            std::memcpy(sink, sums, sizeof sums);
          }};
}

MachinePeak measure_machine(ThreadPool& pool) {
  MachinePeak peak;
  peak.read_bandwidth = read_bandwidth(pool);
  PeakKernel kernel = best_kernel();
  peak.compute_kind = kernel.kind;
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
    peak.compute = std::max(peak.compute, operations / elapsed_since(begin));
  }
  return peak;
}

}  // namespace mlxcel::cli
