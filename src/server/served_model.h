// The model that the server answers with, as the routes see it: names, text
// side and the defaults of requests. Shared by all threads; nothing changes.
#pragma once

#include "engine/dry_breakers.h"
#include "engine/sampler.h"
#include "text/chat_output.h"
#include "text/chat_template.h"
#include "text/constraint.h"
#include "text/tokenizer.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mlxcel::server {

// What a request gets that does not say otherwise.
struct RequestDefaults {
  SamplingParams sampling;
  bool random_seed = true;
  int64_t max_tokens = -1;
  std::vector<std::string> dry_breakers = default_dry_breakers();
  bool cache_prompt = true;
  int64_t keep = 0;  // prompt tokens that a context shift leaves; -1: all
  std::optional<GrammarSource> grammar;  // of answers that have no other
};

// How answers of the chat routes are read and written.
struct AnswerOptions {
  ReasoningFormat reasoning = ReasoningFormat::deepseek;
  bool parse = true;              // thoughts and calls leave the text
  bool prefill_assistant = true;  // a last assistant message is gone on with
  bool reasoning_alias = true;    // "reasoning" beside "reasoning_content"
  int64_t reasoning_budget = -1;  // tokens of a thought at most; -1: any
};

struct ServedModel {
  std::string alias;  // its name on the API
  std::filesystem::path folder;
  int64_t created = 0;  // seconds since 1970
  std::string family;
  int64_t vocab_size = 0;
  int64_t context = 0;        // positions of one sequence here
  int64_t model_context = 0;  // as config.json states it; 0: not stated
  int slots = 1;
  uint64_t weight_bytes = 0;
  std::string surgery;  // the recipe in force; "" for none
  std::vector<int32_t> eos;

  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // null: none
  nlohmann::ordered_json template_kwargs = nlohmann::ordered_json::object();
  std::unique_ptr<TokenTexts> token_texts;
  std::unique_ptr<GrammarCompiler> grammars;
  AnswerOptions answers;
  bool context_shift = false;
  RequestDefaults defaults;

  // A token's bytes as text, with U+FFFD in place of a part of a character.
  std::string piece(int32_t token) const;
};

}  // namespace mlxcel::server
