// `mlxcel run`: a chat in the terminal.
#include "cli/command.h"
#include "cli/console.h"
#include "cli/memory_check.h"
#include "cli/reasoning.h"
#include "cli/sampling_options.h"
#include "cli/session.h"
#include "cli/unbuilt_options.h"

#include <CLI/CLI.hpp>

#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>

namespace mlxcel::cli {

namespace {

struct RunOptions {
  ModelOptions model;
  ChatOptions chat;
  SamplingOptions sampling;
  UnbuiltOptions unbuilt;
  bool no_memory_check = false;
};

constexpr const char* kHelp =
    "  /help, /?   this help\n"
    "  /clear      forget the conversation\n"
    "  /bye        leave (Ctrl-D too)\n"
    "  \"\"\"         begins and ends a message of several lines\n"
    "  Ctrl-C      stops an answer";

// Lines of standard input, read so that Ctrl-C interrupts the wait.
class LineReader {
 public:
  enum class Result { line, end, interrupted };

  Result read(std::string& line) {
    for (;;) {
      size_t newline = buffer_.find('\n');
      if (newline != std::string::npos) {
        line = buffer_.substr(0, newline);
        buffer_.erase(0, newline + 1);
        return Result::line;
      }
      char bytes[4096];
      ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (count < 0 && errno == EINTR) {
        return Result::interrupted;
      }
      if (count <= 0) {
        if (buffer_.empty()) {
          return Result::end;
        }
        line = std::move(buffer_);
        buffer_.clear();
        return Result::line;
      }
      buffer_.append(bytes, size_t(count));
    }
  }

 private:
  std::string buffer_;
};

class Chat {
 public:
  Chat(const RunOptions& options, Session& session)
      : options_(options),
        session_(session),
        sampling_(sampling_params(options.sampling, *session.tokenizer)) {
    clear();
  }

  void clear() {
    messages_ = nlohmann::ordered_json::array();
    if (!options_.chat.system.empty()) {
      messages_.push_back(
          {{"role", "system"}, {"content", options_.chat.system}});
    }
    text_.clear();
  }

  // Answers one message. What fails leaves the conversation as it was.
  void answer(
      const std::string& message, const std::atomic<bool>& interrupted) {
    nlohmann::ordered_json messages = messages_;
    messages.push_back({{"role", "user"}, {"content", message}});
    GenerateRequest request;
    std::string prompt;
    if (session_.chat_template) {
      prompt = session_.render(messages);
      request.sequence.prompt = session_.encode(prompt, PromptKind::chat);
    } else {
      prompt = text_.empty() ? message : text_ + "\n" + message;
      request.sequence.prompt = session_.encode(prompt, PromptKind::plain);
    }
    check_length(request.sequence.prompt.size());
    request.sequence.max_tokens = options_.sampling.max_tokens;
    request.sequence.eos = session_.eos;
    request.sequence.sampling = sampling_;
    sampling_.seed += 1;  // the next answer draws other numbers
    request.sequence.adapter_scales = session_.adapter_scales;
    request.stops = options_.sampling.stops;
    request.cancel = &interrupted;
    ReasoningFilter filter(
        session_.chat_template && !options_.chat.show_reasoning,
        session_.chat_template.get(),
        prompt);
    request.on_text = [&](std::string_view piece) {
      write_out(filter.push(piece));
    };
    GenerateResult result =
        generate(*session_.engine, *session_.tokenizer, std::move(request));
    write_out(filter.finish());
    write_out("\n");
    messages.push_back({{"role", "assistant"}, {"content", result.text}});
    messages_ = std::move(messages);
    text_ = prompt + result.text;
    if (stdin_is_terminal()) {
      print_note(speed_line(result));
    }
  }

 private:
  void check_length(size_t tokens) const {
    const int64_t context = session_.model.max_positions;
    if (context > 0 && int64_t(tokens) > context) {
      throw TextError(
          "the conversation with this message is longer than the context",
          cat("it has ", tokens, " tokens, the context ", context),
          "the message was left out; send a shorter one, or /clear to forget "
          "the conversation");
    }
  }

  const RunOptions& options_;
  Session& session_;
  SamplingParams sampling_;
  nlohmann::ordered_json messages_;
  std::string text_;  // the conversation without a chat template
};

std::string trimmed(const std::string& line) {
  size_t begin = line.find_first_not_of(" \t\r");
  size_t end = line.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : line.substr(begin, end - begin + 1);
}

constexpr std::string_view kQuotes = "\"\"\"";

// Reads one message: a line, or several between triple quotes.
LineReader::Result read_message(LineReader& reader, std::string& message) {
  bool terminal = stdin_is_terminal();
  auto prompt = [&](const char* text) {
    if (terminal) {
      write_message(text);
    }
  };
  prompt(">>> ");
  LineReader::Result result = reader.read(message);
  std::string line = trimmed(message);
  if (result != LineReader::Result::line || !line.starts_with(kQuotes)) {
    message = line;
    return result;
  }
  message = line.substr(kQuotes.size());
  while (!message.ends_with(kQuotes)) {
    prompt("... ");
    result = reader.read(line);
    if (result == LineReader::Result::interrupted) {
      return result;
    }
    if (result == LineReader::Result::end) {
      return LineReader::Result::line;  // an unclosed message still counts
    }
    if (line.ends_with("\r")) {
      line.pop_back();
    }
    message += (message.empty() ? "" : "\n") + line;
  }
  message.resize(message.size() - kQuotes.size());
  if (message.ends_with("\n")) {
    message.pop_back();
  }
  return LineReader::Result::line;
}

int converse(const RunOptions& options, Session& session) {
  const std::atomic<bool>& interrupted = catch_interrupts();
  Chat chat(options, session);
  LineReader reader;
  if (!session.chat_template && !options.chat.no_chat_template) {
    print_warning(
        "this checkpoint has no chat template: each message continues the "
        "text");
  }
  if (stdin_is_terminal()) {
    print_note("Type a message, /help for help, Ctrl-D to leave.");
  }
  std::string message;
  int code = kOk;
  for (;;) {
    clear_interrupt();
    LineReader::Result result = read_message(reader, message);
    if (result == LineReader::Result::end) {
      if (stdin_is_terminal()) {
        print_note("");
      }
      return code;
    }
    if (result == LineReader::Result::interrupted) {
      print_note("\nCtrl-D or /bye leaves.");
      continue;
    }
    if (message.empty()) {
      continue;
    }
    if (message == "/bye" || message == "/exit" || message == "/quit") {
      return code;
    }
    if (message == "/help" || message == "/?") {
      print_note(kHelp);
    } else if (message == "/clear") {
      chat.clear();
      print_note("The conversation is forgotten.");
    } else if (
        message.starts_with("/") &&
        message.find_first_of(" \n") == std::string::npos) {
      print_note(cat("Unknown command ", message, "; /help lists them."));
    } else {
      try {
        chat.answer(message, interrupted);
      } catch (const Error& error) {
        print_error(error.what());
        if (!stdin_is_terminal()) {
          code = kFailed;  // the messages after it are answered all the same
        }
      }
    }
  }
}

int run_chat(const RunOptions& options) {
  refuse_unbuilt(options.unbuilt);
  check_sampling_options(options.sampling);
  if (!options.no_memory_check) {
    check_memory(options.model, options.sampling.max_tokens);
  }
  Session session =
      open_session(options.model, options.chat, Remember::conversation);
  return converse(options, session);
}

}  // namespace

Action declare_run(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  declare_model_options(app, options->model);
  declare_chat_options(app, options->chat);
  declare_sampling_options(app, options->sampling);
  app.add_flag(
      "--no-memory-check,--force",
      options->no_memory_check,
      "Start even when the estimate exceeds the free memory");
  options->unbuilt = declare_unbuilt_options(app);
  return [options] { return run_chat(*options); };
}

}  // namespace mlxcel::cli
