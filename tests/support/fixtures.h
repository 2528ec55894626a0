// Where the reference checkpoints and their expected values are: the part that
// the repository carries, or the whole set named by MLXCEL_FIXTURES.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace mlxcel::testing {

// The root that holds text/, quant/, lora/, surgery/, tokenizer/, real/.
std::filesystem::path fixture_root();

// A case's folder: below that root, or, for cases that only the repository has,
// in its part.
std::filesystem::path fixture_folder(
    const std::string& set, const std::string& name);

// Names of the case folders of a set that hold `marker`, there and in the
// repository's part, sorted. An empty result is a broken set: throws.
std::vector<std::string> fixture_cases(
    const std::string& set, const std::string& marker);

}  // namespace mlxcel::testing
