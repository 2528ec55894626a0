// A slot in a file: a safetensors file with the tokens and the blocks of keys
// and values that the prefix cache held of them.
#pragma once

#include "engine/saved_prefix.h"
#include "ops/kv_cache.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace mlxcel::server {

// What the blocks of a slot depend on beside tokens and adapters: two servers
// of equal fingerprints may use each other's slots.
std::string slot_fingerprint(
    std::string_view weights,
    std::string_view backend,
    const KvCacheSpec& spec);

// Returns the bytes written. Throws CheckpointError.
int64_t write_slot(
    const std::filesystem::path& path,
    const SavedPrefix& saved,
    const std::string& fingerprint);

struct SlotFile {
  SavedPrefix saved;
  int64_t bytes = 0;  // of the file
};

// Checks everything before it returns: the fingerprint, that tokens are in the
// vocabulary, that there are the blocks that the tokens need, each of
// `block_bytes`, and that the content is what was written. Throws
// CheckpointError.
SlotFile read_slot(
    const std::filesystem::path& path,
    const std::string& fingerprint,
    int64_t vocab_size,
    size_t block_bytes);

}  // namespace mlxcel::server
