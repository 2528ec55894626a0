// A tokenizer for tests of grammars: one token a byte, a few longer ones, then
// special tokens.
#pragma once

#include "text/tokenizer.h"

#include <memory>
#include <string>
#include <vector>

namespace mlxcel::testing {

// Bytes 0 to 255 are the ids 0 to 255; 256 to 263 are `{"`, `":`, `tr`, `true`,
// `12`, `ab`, `",` and `]}`; the special tokens follow from 264 on.
std::unique_ptr<Tokenizer> byte_tokenizer(
    const std::vector<std::string>& special);

}  // namespace mlxcel::testing
