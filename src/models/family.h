// What the project knows of one model family: a row of the registry. Detection,
// the routes, `mlxcel arch`, refusals and the table in the docs come from it.
#pragma once

#include "io/config.h"
#include "models/names.h"
#include "models/spec.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

enum class ModelKind : uint8_t {
  generation,
  embedding,
  reranker,
  audio,
  detection
};

// How a folder becomes a model.
enum class DirectoryRoute : uint8_t {
  config_backed,     // config.json describes it all
  nonstandard,       // names or config need a step of their own
  vlm,               // with a tower beside the decoder
  mistral3_dynamic,  // text_config.model_type decides
};

// How weights in memory (after adapters and surgery) become a model.
enum class WeightRoute : uint8_t { none, config_backed, llama_family, special };

enum class AdapterSupport : uint8_t { supported, refused };

// Adapter pairs on the token embedding of a tied checkpoint.
enum class EmbedPairs : uint8_t { refused, when_tied };

// Layers that a checkpoint holds past num_hidden_layers: heads that predict
// further tokens are stored as such.
enum class FurtherLayers : uint8_t { refused, dropped };

struct Family {
  std::string name;  // for people: "Gemma 2"
  std::string type;  // ModelType in tables and messages: "Gemma2"
  std::vector<std::string> model_types;    // config.json model_type
  std::vector<std::string> architectures;  // config.json architectures

  ModelKind kind = ModelKind::generation;
  DirectoryRoute directory_route = DirectoryRoute::config_backed;
  WeightRoute weight_route = WeightRoute::config_backed;
  AdapterSupport adapters = AdapterSupport::supported;
  std::string adapter_refusal;  // the message when refused
  EmbedPairs embed_pairs = EmbedPairs::refused;

  // Another family that some configs of this one's model_type belong to, or
  // null; a missing function: none.
  const Family* (*variant)(const Config& config) = nullptr;
  // What the checkpoint is when it brings a vision tower: a type in the
  // registry; empty: no such checkpoints.
  std::string vision_type;
  // What picks a row that has no model_type of its own: "gemma3 with a vision
  // tower".
  std::string picked_by;

  // Null: the family is listed, but cannot be built yet.
  DecoderSpec (*decoder)(const Config& config) = nullptr;
  // What the reference's class takes for keys that a file leaves out: see
  // with_defaults().
  nlohmann::json defaults = nlohmann::json::object();
  FamilyNames names;
  // Config switches that change the result and that `decoder` reads. Any other
  // known switch away from its neutral value refuses the checkpoint.
  std::vector<std::string_view> features;
  // Tensors that the model does not use, as patterns over whole keys with `*`
  // for any characters: "*.rotary_emb.inv_freq".
  std::vector<std::string> dropped;
  FurtherLayers further_layers = FurtherLayers::refused;
};

std::string_view name_of(ModelKind kind);
std::string_view name_of(DirectoryRoute route);
std::string_view name_of(WeightRoute route);

// The spec of a checkpoint: refuses switches that the family does not read,
// reads the config and checks the numbers. Throws ConfigError.
DecoderSpec decoder_spec(const Family& family, const Config& config);

// The same without the checks, for a family that stands inside another's
// config.
DecoderSpec unchecked_spec(const Family& family, const Config& config);

// Whether a pattern of `dropped` covers the key, or it is of a further layer of
// a model with so many.
bool is_dropped(const Family& family, std::string_view key, size_t layers);

}  // namespace mlxcel
