// From the command line to a subcommand, and from errors to messages.
#include "cli/command.h"
#include "cli/console.h"
#include "cli/unbuilt_options.h"
#include "core/error.h"
#include "core/log.h"
#include "io/mapped_file.h"

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace mlxcel::cli {

namespace {

void print_help() {
  fmt::print(
      "mlxcel runs language models from safetensors checkpoints.\n\n"
      "Usage: mlxcel COMMAND [OPTIONS]\n\nCommands:\n");
  for (const Command& command : commands()) {
    fmt::print("  {:<17}{}\n", command.name, command.summary);
  }
  fmt::print(
      "\nOptions:\n"
      "  -h, --help       Print this help; after a command, that command's\n"
      "  --version        Print the version\n\n"
      "Without --model, commands use the default model, "
      "SmolLM2-135M-Instruct.\n");
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

// "NAME=VALUE" of the environment when the fault is in it: of the option that
// the message is about, unless the command line has that option.
std::string faulty_variable(
    const CLI::App& app,
    const std::vector<std::string>& words,
    const std::string& message) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string& name = option->get_envname();
    const char* value = name.empty() ? nullptr : std::getenv(name.c_str());
    std::string flag = option->get_name();
    size_t place = message.find(flag);
    if (value == nullptr || place == message.npos ||
        message.find_first_of(
            "-abcdefghijklmnopqrstuvwxyz", place + flag.size()) ==
            place + flag.size()) {
      continue;
    }
    bool given = std::any_of(words.begin(), words.end(), [&](const auto& word) {
      return word.starts_with("-") &&
             option->check_name(word.substr(0, word.find('=')));
    });
    if (!given) {
      return cat(name, "=", value);
    }
  }
  return {};
}

// CLI11's message as an error of ours, with the nearest option.
UsageError usage_error(
    const Command& command,
    const CLI::App& app,
    const std::vector<std::string>& words,
    const CLI::ParseError& error) {
  std::string help =
      cat("see mlxcel ", command.name, " --help for the options");
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    std::vector<std::string> extras = app.remaining();
    std::string first = extras.empty() ? std::string() : extras.front();
    bool option = first.starts_with("-");
    std::string name = first.substr(0, first.find('='));
    for (const char* family : {"--spec-", "--cluster-"}) {
      if (name.starts_with(family)) {
        return UsageError(
            cat(name, " is not built yet"),
            cat("this version has no ",
                family[2] == 's' ? "speculative decoding"
                                 : "running over several machines"),
            "leave it out");
      }
    }
    std::string near =
        option ? did_you_mean(name, option_names(app)) : std::string();
    return UsageError(
        cat(option ? "unknown option " : "unexpected argument ",
            option ? name : first),
        cat("mlxcel ", command.name, " does not take it"),
        near.empty() ? help : near + " " + help);
  }
  std::string variable = faulty_variable(app, words, error.what());
  if (!variable.empty()) {
    return UsageError(
        cat("wrong ", variable, " in the environment"), error.what(), help);
  }
  return UsageError(
      cat("wrong command line for mlxcel ", command.name), error.what(), help);
}

// An empty name, often that of a variable that is not set, is no option's
// absence.
void refuse_empty_values(CLI::App& app) {
  struct Type {
    std::string_view name, what;
  };
  constexpr Type kTypes[] = {
      {"DIR", "a folder's name"},
      {"OUT_DIR", "a folder's name"},
      {"PEFT_DIR", "a folder's name"},
      {"FILE", "a file's name"},
      {"NAME", "a name"},
      {"JSON", "JSON"},
      {"GRAMMAR", "a grammar"}};
  for (CLI::Option* option : app.get_options()) {
    for (const Type& type : kTypes) {
      if (option->get_type_name() == type.name) {
        option->check([what = type.what](const std::string& value) {
          return value.empty() ? cat(what, " is needed") : std::string();
        });
      }
    }
  }
}

int run_command(const Command& command, int argc, char** argv) {
  CLI::App app(command.summary, cat("mlxcel ", command.name));
  app.set_help_flag("-h,--help", "Print this help");
  app.get_formatter()->column_width(34);
  // The last of equal options wins, so that aliases can be overridden.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  Action action = command.declare(app);
  refuse_empty_values(app);
  std::vector<std::string> words(argv + 1, argv + argc);
  if (command.spellings != nullptr) {
    command.spellings(words);
  }
  try {
    // In the order that CLI11 wants.
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return kOk;
  } catch (const CLI::ParseError& error) {
    throw usage_error(command, app, words, error);
  }
  return action();
}

const Command& command_named(std::string_view name) {
  for (const Command& command : commands()) {
    if (name == command.name) {
      return command;
    }
  }
  throw std::logic_error("no such command");
}

int dispatch(int argc, char** argv) {
  std::string_view program = argc > 0 ? argv[0] : "";
  if (program.substr(program.rfind('/') + 1) == "mlxcel-server") {
    std::string_view only = argc == 2 ? argv[1] : "";
    if (only == "--version" || only == "-V") {
      fmt::print("mlxcel-server {}\n", MLXCEL_VERSION);
      return kOk;
    }
    return run_command(command_named("serve"), argc, argv);
  }
  std::string_view first = argc > 1 ? argv[1] : "--help";
  if (first == "--help" || first == "-h" || first == "help") {
    print_help();
    return argc > 1 ? kOk : kUsage;
  }
  if (first == "--version" || first == "-V") {
    fmt::print("mlxcel {}\n", MLXCEL_VERSION);
    return kOk;
  }
  for (const Command& command : commands()) {
    if (first == command.name) {
      return run_command(command, argc - 1, argv + 1);
    }
  }
  refuse_unbuilt_command(first);
  std::string near = did_you_mean(first, command_names());
  std::vector<std::string> begun = command_names();
  std::erase_if(begun, [&](auto& name) { return !name.starts_with(first); });
  if (!first.empty() && !begun.empty()) {
    near = fmt::format("did you mean {}?", fmt::join(begun, " or "));
  }
  throw UsageError(
      cat(first.starts_with("-") ? "unknown option " : "unknown command ",
          first),
      near.empty() ? "mlxcel has no such command" : near,
      "see mlxcel --help for the commands");
}

}  // namespace

int main(int argc, char** argv) {
  int code = kOk;
  keep_standard_files_open();
  install_truncation_handler();
  set_log_sink([](LogLevel level, std::string_view message) {
    level == LogLevel::warning ? print_warning(message) : print_note(message);
  });
  try {
    code = dispatch(argc, argv);
  } catch (const UsageError& error) {
    print_error(error.what());
    code = kUsage;
  } catch (const Error& error) {
    print_error(error.what());
    code = kFailed;
  } catch (const std::filesystem::filesystem_error& error) {
    print_error(
        cat("cannot use ",
            error.path1().string(),
            ": ",
            error.code().message(),
            "\n  check the path and its permissions"));
    code = kFailed;
  } catch (const std::bad_alloc&) {
    print_error(
        "out of memory: an allocation failed\n"
        "  use a smaller model, prompt or batch");
    code = kFailed;
  } catch (const std::system_error& error) {
    // The formatting library's word for a failure of fmt::print.
    bool output = std::string_view(error.what()).starts_with("cannot write");
    if (output && error.code() == std::errc::broken_pipe) {
      end_by_broken_pipe();
    }
    print_error(
        output ? cat("cannot write to standard output: ",
                     error.code().message(),
                     "\n  free space, or keep the reader of the pipe open")
               : cat("unexpected failure: ", error.what()));
    code = kFailed;
  } catch (const std::exception& error) {
    print_error(cat("unexpected failure: ", error.what()));
    code = kFailed;
  }
  // A full disk or a closed pipe shows at the latest here.
  if (std::fflush(stdout) != 0 && code == kOk) {
    if (errno == EPIPE) {
      end_by_broken_pipe();
    }
    print_error(
        "cannot write to standard output: the device is full or "
        "closed");
    code = kFailed;
  }
  return code;
}

}  // namespace mlxcel::cli
