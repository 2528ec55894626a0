// The parts of a GGUF import: configuration, tokenizer, weights.
#pragma once

#include "gguf/gguf_file.h"
#include "io/weight_map.h"

#include <nlohmann/json.hpp>
#include <string>

namespace mlxcel {

// The shape of a model of the llama architecture, from the metadata.
struct GgufLlama {
  int64_t layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab_size = 0;
  bool tied_head = false;
  bool attention_bias = false;
  bool mlp_bias = false;
};

// Throws CheckpointError when the architecture is another one or a key is
// missing or out of range.
GgufLlama read_gguf_llama(const GgufFile& file);

// config.json without dtype and quantization.
nlohmann::ordered_json gguf_config(
    const GgufFile& file, const GgufLlama& model);

struct GgufTokenizer {
  std::string tokenizer_json;
  nlohmann::ordered_json config;      // tokenizer_config.json
  nlohmann::ordered_json generation;  // generation_config.json
};
GgufTokenizer gguf_tokenizer(const GgufFile& file);

struct GgufWeights {
  WeightMap tensors;
  nlohmann::ordered_json quantization;  // null when nothing is quantized
  std::string dtype;                    // of what is not: "float16", ...
  int64_t parameters = 0;
};
// Throws CheckpointError for tensors that are missing, unknown, of another
// shape, or of a type that cannot be read.
GgufWeights gguf_weights(
    const GgufFile& file, const GgufLlama& model, bool dequantize);

}  // namespace mlxcel
