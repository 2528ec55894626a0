// The mutator of targets that read a whole safetensors file.
#pragma once

#include "json_mutator.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace mlxcel::fuzz {

// Changes a safetensors header's tokens and mends the length, so that damage
// lies where the checks are; sometimes the length or the data instead.
inline size_t mutate_safetensors(
    uint8_t* data,
    size_t size,
    size_t max_size,
    unsigned seed,
    std::span<const std::string_view> words) {
  JsonMutator mutator(seed, words);
  uint64_t length = 0;
  if (size >= 8) {
    std::memcpy(&length, data, 8);
  }
  if (size < 8 || length > size - 8 || mutator.pick(10) == 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  std::string header(reinterpret_cast<char*>(data) + 8, length);
  std::string rest(
      reinterpret_cast<char*>(data) + 8 + length, size - 8 - length);
  header = mutator.mutate(std::move(header), max_size - 8);
  rest.resize(std::min(rest.size(), max_size - 8 - header.size()));
  length = header.size();
  std::memcpy(data, &length, 8);
  std::copy(header.begin(), header.end(), data + 8);
  std::copy(rest.begin(), rest.end(), data + 8 + length);
  return 8 + header.size() + rest.size();
}

}  // namespace mlxcel::fuzz
