// Brings cache lines in before their use, where hardware does not foresee it.
#pragma once

#include <cstddef>

namespace mlxcel::cpu {

enum class Cache : int { second = 2, first = 3 };  // as the builtin counts

// Those of [data, data + bytes), from `data` on in steps of a line.
template <Cache kCache, bool kForWriting = false>
inline void prefetch(const void* data, size_t bytes) {
  constexpr size_t kLine = 64;
  for (size_t at = 0; at < bytes; at += kLine) {
    __builtin_prefetch(
        static_cast<const char*>(data) + at, kForWriting, int(kCache));
  }
}

}  // namespace mlxcel::cpu
