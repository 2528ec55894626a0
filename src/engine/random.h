// A counter-based random generator: the numbers of a sequence depend on its
// seed and the index of the draw alone, not on what else runs beside it.
#pragma once

#include <array>
#include <cstdint>

namespace mlxcel {

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC11): four 32-bit words for a 128-bit counter and a 64-bit key.
inline std::array<uint32_t, 4> philox4x32(
    std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    uint64_t a = uint64_t(0xD2511F53u) * counter[0];
    uint64_t b = uint64_t(0xCD9E8D57u) * counter[2];
    counter = {
        uint32_t(b >> 32) ^ counter[1] ^ key[0],
        uint32_t(b),
        uint32_t(a >> 32) ^ counter[3] ^ key[1],
        uint32_t(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// Two uniform numbers in [0, 1) for draw `index` of the stream `seed`.
inline std::array<double, 2> uniform_pair(uint64_t seed, uint64_t index) {
  std::array<uint32_t, 4> words = philox4x32(
      {uint32_t(index), uint32_t(index >> 32), 0, 0},
      {uint32_t(seed), uint32_t(seed >> 32)});
  auto unit = [](uint32_t high, uint32_t low) {
    return double((uint64_t(high) << 32 | low) >> 11) * 0x1p-53;
  };
  return {unit(words[0], words[1]), unit(words[2], words[3])};
}

}  // namespace mlxcel
