// The safetensors reader over damaged files: no crash, every refusal names the
// file, and what is accepted lies inside the file and survives a rewrite.
// covers: src/io/safetensors.cpp src/io/json.cpp
// seeds: lora/**/*.safetensors quant/bad/*/*.safetensors
// links: mlxcel_io
#include "core/error.h"
#include "io/safetensors.h"
#include "safetensors_mutator.h"
#include "scratch_folder.h"

#include <algorithm>
#include <cstring>

using namespace mlxcel;

namespace {

constexpr std::string_view kWords[] = {
    "\"F32\"",
    "\"BF16\"",
    "\"U8\"",
    "\"F4\"",
    "\"dtype\"",
    "\"shape\"",
    "\"data_offsets\"",
    "\"__metadata__\"",
    "[0,4]",
    "[1]",
    "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}",
};

const fuzz::ScratchFolder& scratch() {
  static const fuzz::ScratchFolder folder;
  return folder;
}

void require(bool ok) {
  if (!ok) {
    std::abort();
  }
}

// The whole path over a real file: map, copy, write, read again.
void read_from_disk(std::span<const uint8_t> input) {
  auto path = scratch().write(
      "in.safetensors",
      {reinterpret_cast<const char*>(input.data()), input.size()});
  SafetensorsHeader header = read_safetensors_header(path);
  SafetensorsFile file = read_safetensors(path);
  SafetensorsFile copy = read_safetensors(path, {.mmap = false});
  require(file.tensors.size() == header.tensors.size());
  auto out = scratch().path() / "out.safetensors";
  write_safetensors(out, copy.tensors, copy.metadata);
  SafetensorsFile back = read_safetensors(out);
  require(back.tensors.keys() == file.tensors.keys());
  require(back.metadata == file.metadata);
  for (const auto& [key, tensor] : file.tensors) {
    const WeightTensor& other = back.tensors.at(key);
    require(other.dtype == tensor.dtype && other.shape == tensor.shape);
    require(std::equal(tensor.data, tensor.data + tensor.bytes, other.data));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static unsigned runs = 0;
  try {
    SafetensorsHeader header = parse_safetensors_header(
        {reinterpret_cast<const std::byte*>(data), size}, size, "FILE");
    for (const TensorEntry& entry : header.tensors) {
      require(entry.begin <= entry.end && entry.end <= size);
      require(
          entry.end - entry.begin ==
          uint64_t(element_count(entry.shape)) * size_of(entry.dtype));
    }
    read_from_disk({data, size});
  } catch (const CheckpointError& error) {
    require(std::string(error.what()).find("FILE") != std::string::npos);
    // Some refusals go the way through the disk too.
    if (++runs % 16 == 0) {
      try {
        read_from_disk({data, size});
        std::abort();
      } catch (const CheckpointError& again) {
        require(
            std::string(again.what()).find("in.safetensors") !=
            std::string::npos);
      }
    }
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(
    uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return fuzz::mutate_safetensors(data, size, max_size, seed, kWords);
}
