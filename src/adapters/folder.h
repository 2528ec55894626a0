// What reading an adapter and converting one share: the folder's files, and the
// words of refusals.
#pragma once

#include <filesystem>
#include <string>

namespace mlxcel {

// What is left to do with an adapter of PEFT's that is no low-rank sum.
constexpr const char* kMergeWithPeft =
    "merge it into its base checkpoint with PEFT (merge_and_unload) and load "
    "the result as a model";

// Throws AdapterError when it is no folder; `fix` says which one to give.
void check_adapter_folder(const std::filesystem::path& folder, const char* fix);

// adapter_config.json there, as text. Throws AdapterError, with this `fix`,
// when it is missing, empty or too large.
std::string read_adapter_config_text(
    const std::filesystem::path& file, const char* fix);

// Throws AdapterError; `says` is where a file tells that it is DoRA's.
[[noreturn]] void refuse_dora(const std::string& says, const char* fix);

}  // namespace mlxcel
