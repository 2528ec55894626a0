// `mlxcel inspect --adapter`: what a LoRA adapter holds, and whether it fits a
// model.
#pragma once

#include "cli/command.h"

#include <string>

namespace mlxcel::cli {

// Prints the adapter of a folder. With a model (empty: none) it says whether
// all pairs fit it; kFailed when they do not. Reads configs and tensor headers
// only. Throws AdapterError for a folder that no model could take.
int inspect_adapter(
    const std::string& folder, const std::string& model, bool json);

}  // namespace mlxcel::cli
