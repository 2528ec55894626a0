#include "cli/machine_peak.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>
#include <iterator>
#include <numeric>

namespace mlxcel::cli {

PeakKernel peak_kernel_avx512() {
  // Ten independent sums cover the latency of two units.
  constexpr int kRounds = 1024, kSums = 10;
  return {
      "f32 FMA",
      double(kRounds) * kSums * 2 * 16,
      [](float* sink) {
        __m512 x = _mm512_loadu_ps(sink);
        __m512 sums[kSums];
        for (int j = 0; j < kSums; ++j) {
          sums[j] = _mm512_setzero_ps();
        }
        for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 10
          for (int j = 0; j < kSums; ++j) {
            sums[j] = _mm512_fmadd_ps(x, x, sums[j]);
          }
        }
        __m512 total = sums[0];
        for (int j = 1; j < kSums; ++j) {
          total = _mm512_add_ps(total, sums[j]);
        }
        _mm512_storeu_ps(sink, total);
      },
      [](const std::byte* data, size_t bytes) {
        constexpr int kLines = 8;
        __m512i sums[kLines];
        for (__m512i& sum : sums) {
          sum = _mm512_setzero_si512();
        }
        for (size_t i = 0; i < bytes; i += sizeof sums) {
#pragma GCC unroll 8
          for (size_t j = 0; j < kLines; ++j) {
            const std::byte* at = data + i + j * sizeof(__m512i);
            _mm_prefetch(reinterpret_cast<const char*>(at) + 4096, _MM_HINT_T0);
            sums[j] = _mm512_xor_si512(sums[j], _mm512_loadu_si512(at));
          }
        }
        alignas(64) uint64_t words[sizeof sums / 8];
        std::memcpy(words, sums, sizeof sums);
        return std::accumulate(std::begin(words), std::end(words), uint64_t(0));
      }};
}

}  // namespace mlxcel::cli
#endif
