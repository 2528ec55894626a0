// Log-probabilities from logits, as the model gives them: before penalties,
// filters and the temperature.
#pragma once

#include "server/generation.h"
#include "server/served_model.h"

#include <nlohmann/json.hpp>

#include <span>
#include <vector>

namespace mlxcel::server {

// Of `token` and of the `top` best ones. Sums in f64.
TokenLogprob logprob_of(std::span<const float> logits, int32_t token, int top);

// [{"id", "token", "bytes", "logprob", "top_logprobs": [the same without]}], as
// llama-server and OpenAI's chat write them.
nlohmann::json logprobs_json(
    const ServedModel& model, const std::vector<TokenLogprob>& logprobs);

}  // namespace mlxcel::server
