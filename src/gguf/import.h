// GGUF files to MLX safetensors folders.
#pragma once

#include <cstdint>
#include <filesystem>

namespace mlxcel {

struct GgufImport {
  int64_t tensors = 0;  // written
  int64_t parameters = 0;
  uint64_t bytes = 0;  // of the written tensors
  bool quantized = false;
};

// Writes config.json, model.safetensors, tokenizer.json, tokenizer_config.json
// (with the chat template) and generation_config.json into `out`, which must
// not exist or be empty; a failure leaves nothing there.
//
// Llama family; tensors in Q4_0, Q4_1, Q8_0, F16 and F32. Without `dequantize`
// the blocks become affine 4 or 8 bits in groups of 32, value for value; with
// it every tensor becomes bf16. Throws CheckpointError for what a file lacks or
// uses otherwise, and names it.
GgufImport import_gguf(
    const std::filesystem::path& file,
    const std::filesystem::path& out,
    bool dequantize);

}  // namespace mlxcel
