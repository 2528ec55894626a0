#include "server/openai.h"

#include "core/error.h"

#include <chrono>
#include <random>

namespace mlxcel::server {

using nlohmann::json;

std::string new_id(std::string_view prefix) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  constexpr size_t kLength = 29;  // as many as OpenAI's ids have
  thread_local std::mt19937_64 random{std::random_device{}()};
  std::string out(prefix);
  for (size_t i = 0; i < kLength; ++i) {
    out += kLetters[size_t(random() % kLetters.size())];
  }
  return out;
}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

const char* finish_reason(StopKind stop) {
  return stop == StopKind::length ? "length" : "stop";
}

json usage_of(
    const std::vector<GenerationEnd>& ends, size_t answers_per_prompt) {
  int64_t prompt = 0, cached = 0, drawn = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    if (i % answers_per_prompt == 0) {
      prompt += ends[i].prompt_tokens;
      cached += ends[i].cached_tokens;
    }
    drawn += int64_t(ends[i].tokens.size());
  }
  return {
      {"prompt_tokens", prompt},
      {"completion_tokens", drawn},
      {"total_tokens", prompt + drawn},
      {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

json input_tokens_json(size_t tokens) {
  return {{"object", "response.input_tokens"}, {"input_tokens", tokens}};
}

StreamOptions read_stream_options(Body& body) {
  StreamOptions out;
  out.stream = body.flag("stream", false);
  const json* options = body.find("stream_options");
  if (options != nullptr) {
    if (!out.stream) {
      Body::refuse("stream_options", "is for \"stream\": true only");
    }
    Body inner(*options, "stream_options");
    out.include_usage = inner.flag("include_usage", false);
    inner.neutral("include_obfuscation", {false, true});
    inner.finish();
  }
  return out;
}

void ignore_client_fields(Body& body) {
  body.ignore(
      {"user",
       "metadata",
       "safety_identifier",
       "prompt_cache_key",
       "prompt_cache_options",
       "prompt_cache_retention"});
  body.neutral("store", {false});
  body.neutral("service_tier", {"auto", "default"});
  body.neutral("timings_per_token", {false});
  body.neutral("id_slot", {-1});
}

void check_vllm_fields(Body& body) {
  const json none = json::array();
  body.neutral("skip_special_tokens", {true});
  body.neutral("spaces_between_special_tokens", {true});
  body.neutral("include_stop_str_in_output", {false});
  body.neutral("min_tokens", {0});
  body.neutral("stop_token_ids", {none});
  body.neutral("bad_words", {none});
  body.neutral("allowed_token_ids", {none});
  body.neutral("use_beam_search", {false});
  body.neutral("early_stopping", {false});
  body.neutral("length_penalty", {1});
  body.neutral("detokenize", {true});
  body.neutral("priority", {0});
  body.neutral("return_token_ids", {false});
  body.neutral("return_tokens_as_token_ids", {false});
}

http::Task<bool> write_chunk(http::Response& response, const json& chunk) {
  std::string text = chunk.is_null() ? "[DONE]" : http::dump_json(chunk);
  bool sent = co_await response.write(http::event(text));
  co_return sent;
}

http::Task<> end_stream(
    http::Response& response,
    const StreamOptions& options,
    json envelope,
    json usage) {
  if (options.include_usage) {
    envelope["usage"] = std::move(usage);
    bool sent = co_await write_chunk(response, envelope);
    if (!sent) {
      co_return;
    }
  }
  json done = nullptr;
  co_await write_chunk(response, done);
}

}  // namespace mlxcel::server
