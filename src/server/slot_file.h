// A slot in a file: a safetensors file with the tokens, and the blocks of keys
// and values and the recurrent states that the prefix cache held of them.
#pragma once

#include "engine/saved_prefix.h"
#include "ops/kv_cache.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace mlxcel::server {

// What the content of a slot depends on beside tokens and adapters: two servers
// of equal fingerprints may use each other's slots. `arithmetic` is what the
// results of a backend depend on.
std::string slot_fingerprint(
    std::string_view weights,
    std::string_view arithmetic,
    const KvCacheSpec& spec);

// Returns the bytes written. Throws CheckpointError.
int64_t write_slot(
    const std::filesystem::path& path,
    const SavedPrefix& saved,
    const std::string& fingerprint);

struct SlotSizes {
  size_t block = 0;  // bytes of a block
  size_t state = 0;  // bytes of a recurrent state; 0: the model has none
};

struct SlotFile {
  SavedPrefix saved;
  int64_t bytes = 0;  // of the file
};

// Checks everything before it returns: the fingerprint, that tokens are in the
// vocabulary, that blocks and states belong to the tokens and have the right
// sizes, and that the content is what was written. Throws CheckpointError.
SlotFile read_slot(
    const std::filesystem::path& path,
    const std::string& fingerprint,
    int64_t vocab_size,
    const SlotSizes& sizes);

}  // namespace mlxcel::server
