// Log-probabilities from logits, as the model gives them: before penalties,
// filters and the temperature.
#pragma once

#include "server/generation.h"

#include <span>

namespace mlxcel::server {

// Of `token` and of the `top` best ones. Sums in f64.
TokenLogprob logprob_of(std::span<const float> logits, int32_t token, int top);

}  // namespace mlxcel::server
