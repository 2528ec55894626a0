// Which ids end a generation, and encoding prompts with exactly one BOS.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

class Tokenizer;

// Ids that end a generation: eos_token_id (a number or a list) of
// generation_config.json and of config.json (also inside text_config), and the
// tokenizer's eos_token when one is given. Without repetition, in that order.
// Throws TextError when generation_config.json cannot be read or an id is no
// whole number.
std::vector<int32_t> eos_ids(
    const nlohmann::json& config,
    const std::filesystem::path& folder,
    const Tokenizer* tokenizer);

enum class PromptKind : uint8_t {
  plain,  // the post-processor's tokens are added
  chat,   // rendered by a chat template, which writes its own
};

// The prompt's ids. A plain prompt that writes BOS itself ends up with two:
// the ids stay as they are, and `*warning` (may be null) receives a line about
// it.
std::vector<int32_t> encode_prompt(
    const Tokenizer& tokenizer,
    std::string_view text,
    PromptKind kind,
    std::string* warning);

}  // namespace mlxcel
