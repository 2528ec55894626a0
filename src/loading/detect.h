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
};

// Throws ConfigError for unknown, missing and contradicting names.
Detection detect_model(
    const std::filesystem::path& folder, const Config& config);

// The family of a checkpoint that generates text; throws ConfigError for every
// other kind, with what it is.
const Family& require_generation(
    const Detection& detection, const Config& config);

// Whether the checkpoint brings a vision tower that is to be used: config.json
// has a vision_config with entries, language_model_only is not true, and there
// are vision weights.
bool has_vision_tower(const Config& config, const WeightMap& weights);

// Forgets the vision weights of a checkpoint whose config.json asks for its
// text model alone: by language_model_only, or by an empty vision_config. To be
// called when has_vision_tower() says no.
void drop_unused_tower(const Config& config, WeightMap& weights);

}  // namespace mlxcel
