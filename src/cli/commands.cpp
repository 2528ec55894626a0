#include "cli/command.h"

namespace mlxcel::cli {

const std::vector<Command>& commands() {
  static const std::vector<Command> list = {
      {"generate", "Answer one prompt", declare_generate},
      {"run", "Chat with a model", declare_run},
      {"serve",
       "Answer over HTTP, as OpenAI's API",
       declare_serve,
       spell_out_serve_options},
      {"inspect",
       "Show what a checkpoint holds and the memory it needs",
       declare_inspect},
      {"arch", "List the model families", declare_arch},
      {"logits",
       "Write a model's logits for given tokens to a file",
       declare_logits},
      {"perplexity",
       "Score a text, or compare two models on it",
       declare_perplexity},
      {"bench", "Measure speed and memory", declare_bench},
      {"surgery", "Show what a surgery recipe would change", declare_surgery},
      {"import-gguf",
       "Turn a GGUF file into a checkpoint folder",
       declare_import_gguf},
      {"convert-adapter",
       "Turn a PEFT adapter into one that --adapter and --lora take",
       declare_convert_adapter},
      {"completions",
       "Print the completion script of a shell",
       declare_completions},
  };
  return list;
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    names.emplace_back(command.name);
  }
  return names;
}

}  // namespace mlxcel::cli
