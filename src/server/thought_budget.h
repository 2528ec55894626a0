// Ends an answer's thoughts after so many tokens: the closing mark is then the
// only thing that may follow.
#pragma once

#include "server/generation.h"
#include "text/token_constraint.h"
#include "text/tokenizer.h"

#include <memory>

namespace mlxcel::server {

// `inner` with this budget on top; `inner` itself, which may be null, without a
// budget. The tokenizer outlives the result.
std::shared_ptr<TokenConstraint> limit_thoughts(
    std::shared_ptr<TokenConstraint> inner,
    const ThoughtBudget& budget,
    const Tokenizer& tokenizer,
    int64_t vocab_size);

}  // namespace mlxcel::server
