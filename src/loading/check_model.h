// Whether a checkpoint would load, without reading its weights.
#pragma once

#include <filesystem>
#include <string>

namespace mlxcel {

// Builds the model on the CPU backend from config and tensor headers, as
// load_model() does, and says nothing in the log. Empty when that works, else
// what load_model() would throw: what is wrong and why, on one line.
std::string refusal_of(const std::filesystem::path& model);

}  // namespace mlxcel
