#include "cli/machine_peak.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace mlxcel::cli {

PeakKernel peak_kernel_avx512() {
  // Ten independent sums cover the latency of two units.
  constexpr int kRounds = 1024, kSums = 10;
  return {"f32 FMA", double(kRounds) * kSums * 2 * 16, [](float* sink) {
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
          }};
}

}  // namespace mlxcel::cli
#endif
