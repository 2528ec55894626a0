// The loops of machine_peak.h over the vectors of an instruction set. Each file
// that includes this one is compiled for its own set, so that its `Vector` has
// to be a type that no other file has:
//   Floats, Words            registers of floats and of integers
//   load, fma, add, store    on Floats
//   load_words, either       on Words; `either` is exclusive or
#pragma once

#include "cli/machine_peak.h"

#include <immintrin.h>

#include <cstring>

namespace mlxcel::cli {

template <typename Vector>
PeakKernel vector_peak_kernel() {
  // Ten independent sums cover the latency of two units.
  constexpr int kRounds = 1024, kSums = 10;
  using Floats = typename Vector::Floats;
  constexpr int kFloats = sizeof(Floats) / sizeof(float);
  return {
      "f32 FMA",
      double(kRounds) * kSums * 2 * kFloats,
      [](float* sink) {
        Floats x = Vector::load(sink);
        Floats sums[kSums] = {};
        for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 10
          for (int j = 0; j < kSums; ++j) {
            sums[j] = Vector::fma(x, x, sums[j]);
          }
        }
        Floats total = sums[0];
        for (int j = 1; j < kSums; ++j) {
          total = Vector::add(total, sums[j]);
        }
        Vector::store(sink, total);
      },
      [](const std::byte* data, size_t bytes) {
        constexpr int kLines = 8;
        using Words = typename Vector::Words;
        Words sums[kLines] = {};
        for (size_t i = 0; i < bytes; i += sizeof sums) {
#pragma GCC unroll 8
          for (size_t j = 0; j < kLines; ++j) {
            const std::byte* at = data + i + j * sizeof(Words);
            _mm_prefetch(reinterpret_cast<const char*>(at) + 4096, _MM_HINT_T0);
            sums[j] = Vector::either(sums[j], Vector::load_words(at));
          }
        }
        uint64_t words[sizeof sums / 8];
        std::memcpy(words, sums, sizeof sums);
        uint64_t total = 0;
        for (uint64_t word : words) {
          total += word;
        }
        return total;
      }};
}

}  // namespace mlxcel::cli
