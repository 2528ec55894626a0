// `mlxcel completions SHELL`: completion scripts made from the commands' own
// option lists.
#include "cli/command.h"
#include "core/error.h"

#include <CLI/CLI.hpp>

#include <memory>
#include <sstream>

namespace mlxcel::cli {

namespace {

struct OptionText {
  std::vector<std::string> names;  // "-m", "--model"
  std::string help;                // first line
  bool takes_value = false;
  std::string values;  // "FILE" or "DIR": complete paths
};

struct CommandText {
  std::string name, summary;
  std::vector<OptionText> options;
};

std::vector<CommandText> collect() {
  std::vector<CommandText> out;
  for (const Command& command : commands()) {
    CLI::App app(command.summary, command.name);
    app.set_help_flag("-h,--help", "Print this help");
    command.declare(app);
    CommandText text{command.name, command.summary, {}};
    for (const CLI::Option* option : app.get_options()) {
      bool hidden = option->get_group().empty() && option != app.get_help_ptr();
      if (hidden || option->get_positional()) {
        continue;
      }
      OptionText entry;
      for (const std::string& name : option->get_snames()) {
        entry.names.push_back("-" + name);
      }
      for (const std::string& name : option->get_lnames()) {
        entry.names.push_back("--" + name);
      }
      entry.help = option->get_description();
      entry.takes_value = option->get_type_size() > 0;
      entry.values = option->get_type_name();
      text.options.push_back(std::move(entry));
    }
    out.push_back(std::move(text));
  }
  return out;
}

// Text inside single quotes of a shell.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

// As `quoted`, with what zsh's _arguments reads specially escaped.
std::string zsh_text(std::string text) {
  std::string out;
  for (char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') {
      out += '\\';
    }
    out += c;
  }
  return out;
}

std::string bash(const std::vector<CommandText>& all) {
  std::ostringstream out;
  out << "_mlxcel() {\n"
         "  local word=\"${COMP_WORDS[COMP_CWORD]}\" options\n"
         "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
         "    COMPREPLY=($(compgen -W '";
  for (const CommandText& command : all) {
    out << command.name << " ";
  }
  out << "--help --version' -- \"$word\"))\n    return\n  fi\n"
         "  case \"${COMP_WORDS[1]}\" in\n";
  for (const CommandText& command : all) {
    out << "    " << command.name << ") options='";
    for (const OptionText& option : command.options) {
      for (const std::string& name : option.names) {
        out << name << " ";
      }
    }
    if (command.name == std::string("completions")) {
      out << "bash zsh fish ";
    }
    out << "' ;;\n";
  }
  out << "  esac\n"
         "  if [[ \"$word\" == -* || \"${COMP_WORDS[1]}\" == completions ]]; "
         "then\n"
         "    COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -- \"$word\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _mlxcel mlxcel\n";
  return out.str();
}

std::string zsh(const std::vector<CommandText>& all) {
  std::ostringstream out;
  out << "#compdef mlxcel\n_mlxcel() {\n  local -a commands\n  commands=(\n";
  for (const CommandText& command : all) {
    out << "    " << quoted(command.name + ":" + zsh_text(command.summary))
        << "\n";
  }
  out << "  )\n  if (( CURRENT == 2 )); then\n"
         "    _describe command commands\n    return\n  fi\n"
         "  local command=$words[2]\n"
         "  shift words\n  (( CURRENT-- ))\n"
         "  case $command in\n";
  for (const CommandText& command : all) {
    out << "    " << command.name << ") _arguments";
    for (const OptionText& option : command.options) {
      for (const std::string& name : option.names) {
        std::string spec = name + "[" + zsh_text(option.help) + "]";
        if (option.takes_value) {
          spec += ":value:_files";
        }
        out << " \\\n      " << quoted(spec);
      }
    }
    out << " \\\n      "
        << (command.name == std::string("completions")
                ? "'1:shell:(bash zsh fish)'"
                : "'*:file:_files'")
        << " ;;\n";
  }
  out << "  esac\n}\ncompdef _mlxcel mlxcel\n";
  return out.str();
}

std::string fish(const std::vector<CommandText>& all) {
  std::ostringstream out;
  for (const CommandText& command : all) {
    out << "complete -c mlxcel -f -n __fish_use_subcommand -a " << command.name
        << " -d " << quoted(command.summary) << "\n";
    for (const OptionText& option : command.options) {
      out << "complete -c mlxcel -n '__fish_seen_subcommand_from "
          << command.name << "'";
      for (const std::string& name : option.names) {
        bool is_long = name.starts_with("--");
        out << (is_long ? " -l " : " -s ") << name.substr(is_long ? 2 : 1);
      }
      out << (option.takes_value ? " -r" : "") << " -d " << quoted(option.help)
          << "\n";
    }
  }
  out << "complete -c mlxcel -f -n '__fish_seen_subcommand_from completions' "
         "-a 'bash zsh fish'\n";
  return out.str();
}

int run_completions(const std::string& shell) {
  std::vector<CommandText> all = collect();
  std::string script = shell == "bash"  ? bash(all)
                       : shell == "zsh" ? zsh(all)
                                        : fish(all);
  fmt::print("{}", script);
  return kOk;
}

}  // namespace

Action declare_completions(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  return [shell] { return run_completions(*shell); };
}

}  // namespace mlxcel::cli
