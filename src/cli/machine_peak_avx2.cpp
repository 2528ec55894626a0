#include "cli/machine_peak.h"

#if defined(__x86_64__)
#include "cli/machine_peak_loops.h"

namespace mlxcel::cli {

namespace {

struct Avx2 {
  using Floats = __m256;
  using Words = __m256i;

  static Floats load(const float* at) {
    return _mm256_loadu_ps(at);
  }
  static Floats fma(Floats a, Floats b, Floats c) {
    return _mm256_fmadd_ps(a, b, c);
  }
  static Floats add(Floats a, Floats b) {
    return _mm256_add_ps(a, b);
  }
  static void store(float* at, Floats x) {
    _mm256_storeu_ps(at, x);
  }
  static Words load_words(const std::byte* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
  static Words either(Words a, Words b) {
    return _mm256_xor_si256(a, b);
  }
};

}  // namespace

PeakKernel peak_kernel_avx2() {
  return vector_peak_kernel<Avx2>();
}

}  // namespace mlxcel::cli
#endif
