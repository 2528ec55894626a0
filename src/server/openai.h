// What OpenAI's routes have in common.
#pragma once

#include "server/answers.h"
#include "server/body.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace mlxcel::server {

// "chatcmpl-" and random letters.
std::string new_id(std::string_view prefix);
int64_t unix_time();

// "stop" or "length".
const char* finish_reason(StopKind stop);

// {"prompt_tokens", "completion_tokens", "total_tokens",
// "prompt_tokens_details": {"cached_tokens"}} of answers to one prompt each;
// a prompt that several answers share counts once.
nlohmann::json usage_of(
    const std::vector<GenerationEnd>& ends, size_t answers_per_prompt);

// {"object": "response.input_tokens", "input_tokens"}.
nlohmann::json input_tokens_json(size_t tokens);

struct StreamOptions {
  bool stream = false;
  bool include_usage = false;
};
StreamOptions read_stream_options(Body& body);

// The end of a stream of chunks: the usage of all answers in the envelope of a
// chunk, where it was asked for, and "[DONE]".
http::Task<> end_stream(
    http::Response& response,
    const StreamOptions& options,
    nlohmann::json envelope,
    nlohmann::json usage);

// Fields that say something about the client or the account.
void ignore_client_fields(Body& body);

// vLLM's fields beyond OpenAI's, at the values that its clients send unasked;
// others are refused by name.
void check_vllm_fields(Body& body);

// Writes one chunk, or "[DONE]" for null. False when the client is gone.
http::Task<bool> write_chunk(
    http::Response& response, const nlohmann::json& chunk);

}  // namespace mlxcel::server
