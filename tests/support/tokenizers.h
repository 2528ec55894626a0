// The reference tokenizers: their folders and their tables of expected values.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace mlxcel::testing {

struct TokenizerCase {
  std::filesystem::path folder;  // tokenizer.json, tokenizer_config.json
  nlohmann::ordered_json expected;
  std::string
      problem;  // what is missing and how to get it; "" when all is here
};

// small_NAME: folders of the fixtures. real_NAME: tables of published
// tokenizers, whose files scripts/fetch_tokenizers.sh puts into the cache;
// real_smollm2 is the default model's, imported from a GGUF file.
std::vector<std::string> tokenizer_case_names();
TokenizerCase load_tokenizer_case(const std::string& name);

// $MLXCEL_TEST_MODEL, or the place in the cache where the entry script puts the
// default model.
std::filesystem::path default_model_folder();

// $MLXCEL_CACHE_DIR, or ~/.cache/mlxcel.
std::filesystem::path cache_folder();

}  // namespace mlxcel::testing
