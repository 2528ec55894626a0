#include "cli/session.h"

#include "cli/console.h"
#include "core/log.h"
#include "io/checkpoint.h"
#include "io/json.h"

#include <CLI/CLI.hpp>

#include <future>

namespace mlxcel::cli {

void declare_chat_options(CLI::App& app, ChatOptions& options) {
  auto group = [](CLI::Option* option) { option->group("Text"); };
  CLI::Option* plain = app.add_flag(
      "--no-chat-template",
      options.no_chat_template,
      "Take the prompt as it is");
  group(plain);
  group(app.add_option(
               "--chat-template-file",
               options.template_file,
               "A Jinja template instead of the checkpoint's own")
            ->type_name("FILE")
            ->excludes(plain));
  group(app.add_option(
               "--system",
               options.system,
               "A system message before the conversation")
            ->type_name("TEXT")
            ->excludes(plain));
  group(app.add_option(
               "--chat-template-kwargs",
               options.template_kwargs,
               "Variables for the chat template, a JSON object")
            ->type_name("JSON"));
  group(app.add_flag(
      "--show-reasoning",
      options.show_reasoning,
      "Print what the model thinks before its answer too"));
}

TextSide open_text(
    const std::filesystem::path& folder, const ChatOptions& chat) {
  TextSide text;
  text.template_kwargs = parse_template_kwargs(chat.template_kwargs);
  text.tokenizer = Tokenizer::load(folder);
  if (!chat.template_file.empty()) {
    text.chat_template =
        ChatTemplate::from_source(read_text_file(chat.template_file), folder);
  } else if (!chat.no_chat_template) {
    text.chat_template = ChatTemplate::load(folder);
  }
  return text;
}

Session open_session(
    const ModelOptions& options, const ChatOptions& chat, Remember remember) {
  Session session;
  parse_template_kwargs(
      chat.template_kwargs);  // a wrong one fails before the load
  LoadOptions load = load_options(options);
  session.adapter_scales = adapter_scales(load);
  std::filesystem::path folder = checkpoint_folder(load.model);

  // The text side needs about as long as a small model's weights.
  auto text =
      std::async(std::launch::async, [&] { return open_text(folder, chat); });
  session.model = load_model(load);
  clear_progress();
  static_cast<TextSide&>(session) = text.get();
  session.eos =
      eos_ids(session.model.config.json(), folder, session.tokenizer.get());

  EngineOptions engine;
  engine.max_positions = session.model.max_positions;
  engine.reuse_generated = !options.deterministic;
  if (remember == Remember::conversation) {
    // One conversation, whatever its length: only the last turns' ends are of
    // use.
    engine.prefix_cache = {
        .bytes = int64_t(1) << 50, .max_entries = 4, .min_positions = 1};
  }
  session.engine = std::make_unique<Engine>(
      *session.model.model, *session.model.backend, engine);
  return session;
}

std::string TextSide::render(const nlohmann::ordered_json& messages) const {
  ChatTemplate::Input input;
  input.messages = &messages;
  input.kwargs = &template_kwargs;
  return chat_template->render(input);
}

std::vector<int32_t> TextSide::encode(
    const std::string& prompt, PromptKind kind) const {
  std::string warning;
  std::vector<int32_t> ids = encode_prompt(*tokenizer, prompt, kind, &warning);
  if (!warning.empty()) {
    log_warning(warning);
  }
  return ids;
}

std::string speed_line(const GenerateResult& r) {
  // None for what took no time: an answer without a token, or of one.
  auto rate = [](int64_t count, double seconds) {
    return count > 0 && seconds > 0
               ? fmt::format(", {:.1f} tokens/s", double(count) / seconds)
               : std::string();
  };
  // The first token belongs to the prompt's time: the rest were decoded.
  return fmt::format(
      "Prompt: {} tokens{} | Answer: {} tokens{} | Peak memory: {}",
      r.prompt_tokens,
      rate(r.prompt_tokens - r.cached_tokens, r.prompt_seconds),
      r.generated_tokens,
      rate(r.generated_tokens - 1, r.decode_seconds),
      format_bytes(double(peak_memory_bytes())));
}

}  // namespace mlxcel::cli
