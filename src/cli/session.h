// A model ready for text: weights, tokenizer, chat template and engine, loaded
// side by side.
#pragma once

#include "cli/model_options.h"
#include "engine/generate.h"
#include "text/chat_template.h"
#include "text/special_ids.h"
#include "text/tokenizer.h"

#include <nlohmann/json.hpp>

#include <memory>
#include <string>
#include <vector>

namespace mlxcel::cli {

struct ChatOptions {
  bool no_chat_template = false;
  bool show_reasoning = false;
  std::string template_file;    // instead of the checkpoint's own template
  std::string system;           // a system message in front
  std::string template_kwargs;  // a JSON object
};

void declare_chat_options(CLI::App& app, ChatOptions& options);

// The text side of a checkpoint alone.
struct TextSide {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // null: plain text
  nlohmann::ordered_json template_kwargs;

  // The prompt of a conversation: messages rendered by the template.
  std::string render(const nlohmann::ordered_json& messages) const;
  // The prompt's tokens, with a warning when it has two BOS.
  std::vector<int32_t> encode(const std::string& prompt, PromptKind kind) const;
};

// Throws TextError, or UsageError for wrong template variables.
TextSide open_text(
    const std::filesystem::path& folder, const ChatOptions& chat);

struct Session : TextSide {
  LoadedModel model;
  std::vector<int32_t> eos;
  std::vector<float> adapter_scales;
  std::unique_ptr<Engine> engine;  // last: goes first
};

// What a later prompt of the session may take from an earlier one.
enum class Remember : uint8_t { nothing, conversation };

Session open_session(
    const ModelOptions& options,
    const ChatOptions& chat,
    Remember remember = Remember::nothing);

// "Prompt: 16 tokens, 812.0 tokens/s | Answer: 48 tokens, 151.0 tokens/s | Peak
// memory: 181.2 MB"
std::string speed_line(const GenerateResult& result);

}  // namespace mlxcel::cli
