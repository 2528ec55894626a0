#include "cli/machine_peak.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace mlxcel::cli {

PeakKernel peak_kernel_avx512bf16() {
  // Ten independent sums cover the latency of two units.
  constexpr int kRounds = 1024, kSums = 10;
  return {
      "bf16 dot",
      double(kRounds) * kSums * 2 * 32,
      [](float* sink) {
        __m512bh x = (__m512bh)_mm512_loadu_si512(sink);
        __m512 sums[kSums];
        for (int j = 0; j < kSums; ++j) {
          sums[j] = _mm512_setzero_ps();
        }
        for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 10
          for (int j = 0; j < kSums; ++j) {
            sums[j] = _mm512_dpbf16_ps(sums[j], x, x);
          }
        }
        __m512 total = sums[0];
        for (int j = 1; j < kSums; ++j) {
          total = _mm512_add_ps(total, sums[j]);
        }
        _mm512_storeu_ps(sink, total);
      },
      peak_kernel_avx512().read};
}

}  // namespace mlxcel::cli
#endif
