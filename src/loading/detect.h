// What a checkpoint is: its kind and its family, from config.json and the
// folder's other files. Nothing is guessed: what cannot be decided is an error
// that names the value and the nearest known ones.
#pragma once

#include "io/config.h"
#include "io/weight_map.h"
#include "models/family.h"

#include <filesystem>
#include <string>

namespace mlxcel {

struct Detection {
  ModelKind kind = ModelKind::generation;
  const Family* family = nullptr;  // null: a kind without registered family
  std::string model_type;  // config.json's, else the architecture that decided
  std::string evidence;    // what decided the kind, for messages
  // The registry's type, after the family's variants: "Llama", "Gemma3VLM".
  // Empty without a family.
  std::string type;
  // Whether the checkpoint brings a vision tower that is to be used: it has a
  // vision_config with entries and vision weights, and language_model_only is
  // not true. Why, or why not; empty when nothing speaks of one.
  bool vision_tower = false;
  std::string vision_evidence;
};

// Throws ConfigError for unknown, missing and contradicting names.
Detection detect_model(
    const std::filesystem::path& folder, const Config& config);

// The family of a checkpoint that generates text; throws ConfigError for every
// other kind, with what it is.
const Family& require_generation(
    const Detection& detection, const Config& config);

// What a request with an image or a video gets from a model without a tower.
std::string no_vision_tower_message(const std::filesystem::path& model);

// Forgets the vision weights of a checkpoint whose text model alone is loaded:
// by language_model_only, or for want of a vision_config with entries.
void drop_unused_tower(const Config& config, WeightMap& weights);

}  // namespace mlxcel
