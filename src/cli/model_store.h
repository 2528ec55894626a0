// Where models live by name, and the default one.
#pragma once

#include <filesystem>
#include <string>

namespace mlxcel::cli {

inline constexpr const char* kDefaultModel = "SmolLM2-135M-Instruct";

// ${MLXCEL_MODELS_DIR}, else ${MLXCEL_CACHE_DIR:-~/.cache/mlxcel}/models.
std::filesystem::path model_store();

// A folder or file for what the user wrote: an existing path, else a name in
// the store (NAME, OWNER/NAME, or NAME under MLXCEL_DEFAULT_ORG). "" gives the
// default model: from the store, else from the program's own
// share/mlxcel/models. Throws CheckpointError that lists the places looked at.
std::filesystem::path find_model(const std::string& argument);

}  // namespace mlxcel::cli
