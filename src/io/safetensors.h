// Safetensors files: an 8-byte little-endian header length, a JSON header that
// names each tensor's dtype, shape and byte range, then the data at any
// alignment. https://huggingface.co/docs/safetensors
#pragma once

#include "io/mapped_file.h"
#include "io/weight_map.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace mlxcel {

struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  uint64_t begin = 0, end = 0;  // bytes from the start of the file
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // by name
  std::map<std::string, std::string> metadata;
};

// Checks the whole header against the file's size: length, JSON, duplicate
// keys, dtypes, ranges inside the file and without overlap, shape x dtype =
// bytes. `head` is the file's beginning, at least 8 bytes and the header where
// the file has them. Throws CheckpointError that names file, tensor and field.
SafetensorsHeader parse_safetensors_header(
    std::span<const std::byte> head,
    uint64_t file_bytes,
    const std::string& file);

// Reads the header alone.
SafetensorsHeader read_safetensors_header(const std::filesystem::path& path);

struct SafetensorsFile {
  WeightMap tensors;  // views of the file's bytes, which they keep alive
  std::map<std::string, std::string> metadata;
};

SafetensorsFile read_safetensors(
    const std::filesystem::path& path, const ReadOptions& options = {});

// Writes through a temporary file beside `path`, so that a failure leaves no
// half-written one. Tensors come by falling element size, then by name, each
// aligned to its element. Throws CheckpointError.
void write_safetensors(
    const std::filesystem::path& path,
    const WeightMap& tensors,
    const std::map<std::string, std::string>& metadata = {});

}  // namespace mlxcel
