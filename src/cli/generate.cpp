// `mlxcel generate`: one prompt, its answer on standard output, everything else
// on standard error.
#include "cli/command.h"
#include "cli/console.h"
#include "cli/grammar_options.h"
#include "cli/memory_check.h"
#include "cli/model_store.h"
#include "cli/reasoning.h"
#include "cli/sampling_options.h"
#include "cli/session.h"
#include "cli/unbuilt_options.h"
#include "io/checkpoint.h"

#include <CLI/CLI.hpp>

#include <memory>
#include <optional>

namespace mlxcel::cli {

namespace {

struct GenerateOptions {
  ModelOptions model;
  ChatOptions chat;
  SamplingOptions sampling;
  UnbuiltOptions unbuilt;
  GrammarOptions grammar;
  std::optional<std::string> prompt;
  bool estimate_memory = false;
  bool no_memory_check = false;
};

std::string read_prompt(const GenerateOptions& options) {
  if (options.prompt && *options.prompt != "-") {
    return *options.prompt;
  }
  if (!options.prompt && stdin_is_terminal()) {
    throw UsageError(
        "no prompt",
        "--prompt is not given and nothing is piped in",
        "give --prompt TEXT, or start a chat with mlxcel run");
  }
  std::string text = read_stdin();
  if (text.ends_with("\n")) {
    text.pop_back();  // the line's end is not part of the prompt
  }
  return text;
}

struct Prompt {
  std::string rendered;  // as the model sees it
  std::vector<int32_t> tokens;
};

Prompt make_prompt(
    const GenerateOptions& options,
    const TextSide& text,
    const std::string& prompt) {
  if (!text.chat_template) {
    return {prompt, text.encode(prompt, PromptKind::plain)};
  }
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!options.chat.system.empty()) {
    messages.push_back({{"role", "system"}, {"content", options.chat.system}});
  }
  messages.push_back({{"role", "user"}, {"content", prompt}});
  std::string rendered = text.render(messages);
  return {rendered, text.encode(rendered, PromptKind::chat)};
}

// Without a prompt, one of ordinary length is assumed.
int estimate_memory_use(const GenerateOptions& options) {
  int64_t prompt_tokens = kPromptAllowance;
  if (options.prompt && *options.prompt != "-") {
    TextSide text = open_text(
        checkpoint_folder(find_model(options.model.model)), options.chat);
    prompt_tokens =
        int64_t(make_prompt(options, text, *options.prompt).tokens.size());
  }
  print_memory_estimate(
      options.model, prompt_tokens, options.sampling.max_tokens);
  return kOk;
}

int run_generate(const GenerateOptions& options) {
  refuse_unbuilt(options.unbuilt);
  check_sampling_options(options.sampling);
  std::optional<GrammarSource> grammar = grammar_source(options.grammar);
  if (options.estimate_memory) {
    return estimate_memory_use(options);
  }
  std::string prompt = read_prompt(options);
  if (!options.no_memory_check) {
    check_memory(options.model, options.sampling.max_tokens);
  }
  const std::atomic<bool>& interrupted = catch_interrupts();
  Session session = open_session(options.model, options.chat);

  GenerateRequest request;
  Prompt made = make_prompt(options, session, prompt);
  request.sequence.prompt = made.tokens;
  request.sequence.max_tokens = options.sampling.max_tokens;
  request.sequence.eos = session.eos;
  request.sequence.sampling =
      sampling_params(options.sampling, *session.tokenizer);
  request.sequence.adapter_scales = session.adapter_scales;
  GrammarCompiler compiler(*session.tokenizer, session.eos);
  if (grammar) {
    // Faults in the words of what was given.
    compile_option(compiler, options.grammar, *grammar);
    request.sequence.constraint = compiler
                                      .compile(grammar_of_answer(
                                          *grammar,
                                          session.chat_template.get(),
                                          made.rendered,
                                          *session.tokenizer))
                                      ->start();
  }
  request.stops = options.sampling.stops;
  request.cancel = &interrupted;
  ReasoningFilter filter(
      session.chat_template && !options.chat.show_reasoning,
      session.chat_template.get(),
      made.rendered);
  request.on_text = [&](std::string_view piece) {
    write_out(filter.push(piece));
  };
  GenerateResult result =
      generate(*session.engine, *session.tokenizer, std::move(request));
  write_out(filter.finish());
  write_out("\n");
  print_note(speed_line(result));
  return result.stop == StopKind::cancelled ? kInterrupted : kOk;
}

}  // namespace

Action declare_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  app.add_option(
         "-p,--prompt",
         options->prompt,
         "What to answer; - or none reads standard input")
      ->type_name("TEXT");
  declare_model_options(app, options->model);
  declare_chat_options(app, options->chat);
  declare_sampling_options(app, options->sampling);
  declare_grammar_options(app, options->grammar);
  app.add_flag(
      "--estimate-memory",
      options->estimate_memory,
      "Print the memory a run would need, and stop");
  app.add_flag(
      "--no-memory-check,--force",
      options->no_memory_check,
      "Start even when the estimate exceeds the free memory");
  options->unbuilt = declare_unbuilt_options(app);
  return [options] { return run_generate(*options); };
}

}  // namespace mlxcel::cli
