#include "cli/machine_peak.h"

#if defined(__x86_64__)
#include "cli/machine_peak_loops.h"

namespace mlxcel::cli {

namespace {

struct Avx512 {
  using Floats = __m512;
  using Words = __m512i;

  static Floats load(const float* at) {
    return _mm512_loadu_ps(at);
  }
  static Floats fma(Floats a, Floats b, Floats c) {
    return _mm512_fmadd_ps(a, b, c);
  }
  static Floats add(Floats a, Floats b) {
    return _mm512_add_ps(a, b);
  }
  static void store(float* at, Floats x) {
    _mm512_storeu_ps(at, x);
  }
  static Words load_words(const std::byte* at) {
    return _mm512_loadu_si512(at);
  }
  static Words either(Words a, Words b) {
    return _mm512_xor_si512(a, b);
  }
};

}  // namespace

PeakKernel peak_kernel_avx512() {
  return vector_peak_kernel<Avx512>();
}

}  // namespace mlxcel::cli
#endif
