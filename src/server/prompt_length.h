// Texts far beyond what the model can read, refused before all of their tokens
// are made: a tokenizer takes more than a hundred bytes of memory for one of
// the text.
#pragma once

#include "server/served_model.h"

#include <cstdint>
#include <string_view>

namespace mlxcel::server {

// What a text is encoded for.
enum class TextUse : uint8_t {
  prompt,  // must fit the context
  count,   // only its tokens are wanted
};

// Throws Failure: for a prompt that has more than twice the context's tokens,
// for another text of more than 4 MiB.
void check_length(std::string_view text, TextUse use, const ServedModel& model);

// A prompt of this many tokens, or more, is beyond the context.
[[noreturn]] void refuse_prompt_tokens(
    int64_t tokens, int64_t context, bool or_more);

}  // namespace mlxcel::server
