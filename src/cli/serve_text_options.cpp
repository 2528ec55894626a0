// Templates, thoughts and positions.
#include "cli/serve_options.h"

#include "core/error.h"

#include <CLI/CLI.hpp>

namespace mlxcel::cli {

void declare_text_options(
    CLI::App& app,
    TextFlags& flags,
    RopeFlags& rope,
    server::ServerOptions& options) {
  constexpr const char* kGroup = "Text";
  server::ChatTemplateOptions& chat = options.chat_template;
  CLI::Option* text =
      in(kGroup,
         app.add_option(
             "--chat-template",
             chat.text,
             "A Jinja template instead of the checkpoint's own"));
  in(kGroup,
     app.add_option("--chat-template-file", chat.file, "The same from a file")
         ->type_name("FILE")
         ->excludes(text));
  in(kGroup,
     app.add_option(
            "--chat-template-kwargs",
            chat.kwargs,
            "Variables for the chat template, a JSON object")
         ->type_name("JSON"));
  in(kGroup,
     app.add_option_function<std::string>(
            "--reasoning-format",
            [&options](const std::string& name) {
              options.answers.reasoning = reasoning_format(name);
            },
            "Where a model's thoughts go: none (they stay in the answer), "
            "deepseek, deepseek-legacy (both) or auto")
         ->default_str("auto"));
  server::AnswerOptions& answers = options.answers;
  in(kGroup,
     app.add_option(
            "--reasoning",
            flags.thinking,
            "Ask the template for thoughts (on), for none (off), or leave it "
            "to the template (auto)")
         ->check(CLI::IsMember({"on", "off", "auto"}))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--reasoning-effort",
            chat.reasoning_effort,
            "What templates with such a setting get: low, medium, high, ...")
         ->type_name("LEVEL"));
  in(kGroup,
     app.add_option(
            "--reasoning-budget",
            answers.reasoning_budget,
            "Tokens that an answer may think at most; -1 for any number, 0 "
            "also asks the template for none")
         ->check(CLI::Range(int64_t(-1), int64_t(1) << 40))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--reasoning-alias-field",
            flags.alias_field,
            "Where thoughts stand beside reasoning_content: reasoning or none")
         ->check(CLI::IsMember({"reasoning", "none"}))
         ->capture_default_str());
  in(kGroup,
     app.add_flag(
         "--skip-chat-parsing{true},--no-skip-chat-parsing{false}",
         flags.skip_parsing,
         "Leave thoughts and calls of tools in the text"));
  in(kGroup,
     app.add_flag(
         "--prefill-assistant{true},--no-prefill-assistant{false}",
         answers.prefill_assistant,
         "Whether a last message of the assistant is the beginning of the "
         "answer"));

  auto rotary = [&app](const char* name, double& value, const char* help) {
    app.add_option(name, value, help)
        ->check(CLI::PositiveNumber)
        ->group("Context");
  };
  in("Context",
     app.add_option(
         "--rope-scaling",
         rope.scaling,
         "Rotary positions in place of the config's: none or linear"));
  rotary(
      "--rope-scale",
      rope.scale,
      "Linear scaling: the context grows by this factor");
  rotary("--rope-freq-scale", rope.frequency_scale, "The same as its inverse");
  rotary("--rope-freq-base", rope.base, "Base of the frequencies");
}

void finish_text(const TextFlags& flags, server::ServerOptions& options) {
  const std::string& text = options.chat_template.text;
  if (!text.empty() && text.find('{') == std::string::npos) {
    throw UsageError(
        "wrong --chat-template",
        cat("'",
            text.substr(0, 80),
            "' is no template: every prompt would be these words; names of "
            "built-in templates are not known here"),
        "give the template's text, or its file with --chat-template-file; "
        "without either the checkpoint's own is used");
  }
  if (flags.thinking != "auto") {
    options.chat_template.thinking = flags.thinking == "on";
  } else if (options.answers.reasoning_budget == 0) {
    options.chat_template.thinking = false;
  }
  options.answers.reasoning_alias = flags.alias_field == "reasoning";
  options.answers.parse = !flags.skip_parsing;
}

RopeOverride rope_override(const RopeFlags& flags) {
  RopeOverride out;
  out.base = flags.base;
  if (flags.scale != 0 && flags.frequency_scale != 0) {
    throw UsageError(
        "--rope-scale and --rope-freq-scale exclude each other",
        "one is the inverse of the other",
        "give one of them");
  }
  double factor = flags.frequency_scale != 0 ? 1 / flags.frequency_scale
                  : flags.scale != 0         ? flags.scale
                                             : 1;
  if (flags.scaling == "none") {
    if (factor != 1) {
      throw UsageError(
          "--rope-scaling none takes no factor",
          cat("the factor ", factor, " is given too"),
          "leave one of them out");
    }
    out.scaling = RopeScaling::none;
  } else if (flags.scaling == "linear" || flags.scaling.empty()) {
    if (factor != 1 || !flags.scaling.empty()) {
      out.scaling = RopeScaling::linear;
      out.factor = factor;
    }
  } else {
    throw UsageError(
        cat("--rope-scaling ", flags.scaling, " is not built yet"),
        "this version replaces a config's scaling by none or linear only",
        "leave it out: the config's own scaling, yarn too, is in force then");
  }
  return out;
}

}  // namespace mlxcel::cli
