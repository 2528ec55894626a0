// Included inside an anonymous namespace by what needs it.

// 8 x 8 transpose of 32-bit elements.
inline void transpose_eight(__m256i* r) {
  __m256i t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m256i low = _mm256_permute2x128_si256(r[i], r[4 + i], 0x20);
    t[i] = _mm256_permute2x128_si256(r[i], r[4 + i], 0x31);
    r[i] = low;
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 + i] = t[i];
  }
}
