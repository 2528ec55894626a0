// The subcommands of the program: one file each, listed in commands.cpp.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace mlxcel::cli {

// Exit codes; 130 is the shell's for a program that Ctrl-C ended.
constexpr int kOk = 0, kFailed = 1, kUsage = 2, kInterrupted = 130;

// Runs after the options were parsed; returns the exit code.
using Action = std::function<int()>;

struct Command {
  const char* name;
  const char* summary;
  Action (*declare)(CLI::App& app);  // adds the options
  // Rewrites words of the command line to their usual spelling; null: none has
  // another.
  void (*spellings)(std::vector<std::string>& words) = nullptr;
};

const std::vector<Command>& commands();
std::vector<std::string> command_names();

Action declare_generate(CLI::App& app);
Action declare_run(CLI::App& app);
Action declare_serve(CLI::App& app);
void spell_out_serve_options(std::vector<std::string>& words);
Action declare_inspect(CLI::App& app);
Action declare_arch(CLI::App& app);
Action declare_logits(CLI::App& app);
Action declare_perplexity(CLI::App& app);
Action declare_bench(CLI::App& app);
Action declare_surgery(CLI::App& app);
Action declare_import_gguf(CLI::App& app);
Action declare_convert_adapter(CLI::App& app);
Action declare_completions(CLI::App& app);

// The whole program: parses, runs, and turns errors into messages.
int main(int argc, char** argv);

}  // namespace mlxcel::cli
