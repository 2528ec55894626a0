#include "cli/machine_peak.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace mlxcel::cli {

PeakKernel peak_kernel_avx2() {
  // Ten independent sums cover the latency of two units.
  constexpr int kRounds = 1024, kSums = 10;
  return {"f32 FMA", double(kRounds) * kSums * 2 * 8, [](float* sink) {
            __m256 x = _mm256_loadu_ps(sink);
            __m256 sums[kSums];
            for (int j = 0; j < kSums; ++j) {
              sums[j] = _mm256_setzero_ps();
            }
            for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 10
              for (int j = 0; j < kSums; ++j) {
                sums[j] = _mm256_fmadd_ps(x, x, sums[j]);
              }
            }
            __m256 total = sums[0];
            for (int j = 1; j < kSums; ++j) {
              total = _mm256_add_ps(total, sums[j]);
            }
            _mm256_storeu_ps(sink, total);
          }};
}

}  // namespace mlxcel::cli
#endif
