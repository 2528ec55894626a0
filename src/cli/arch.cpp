// `mlxcel arch`: the registry of model families, or the family of a folder.
#include "cli/command.h"
#include "cli/model_store.h"
#include "core/error.h"
#include "io/checkpoint.h"
#include "loading/config_file.h"
#include "loading/detect.h"
#include "models/registry.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <memory>

namespace mlxcel::cli {

namespace {

struct ArchOptions {
  std::string folder;
  bool json = false;
  bool markdown = false;
};

nlohmann::ordered_json describe(const Family& family) {
  return {
      {"name", family.name},
      {"type", family.type},
      {"kind", name_of(family.kind)},
      {"model_types", family.model_types},
      {"architectures", family.architectures},
      {"directory_route", name_of(family.directory_route)},
      {"weight_route", name_of(family.weight_route)},
      {"adapters", family.adapters == AdapterSupport::supported},
      {"runs", family.decoder != nullptr},
  };
}

void print_table() {
  fmt::print(
      "{:<24}{:<32}{:<12}{:<16}{}\n",
      "family",
      "model_type",
      "kind",
      "route",
      "adapters");
  for (const Family* family : families()) {
    fmt::print(
        "{:<24}{:<32}{:<12}{:<16}{}{}\n",
        family->name,
        fmt::format("{}", fmt::join(family->model_types, ", ")),
        name_of(family->kind),
        name_of(family->directory_route),
        family->adapters == AdapterSupport::supported ? "yes" : "no",
        family->decoder ? "" : "  (not built yet)");
  }
}

int run_arch(const ArchOptions& options) {
  if (!options.folder.empty()) {
    std::filesystem::path folder =
        checkpoint_folder(find_model(options.folder));
    Config config = read_config(folder);
    const Family& family =
        require_generation(detect_model(folder, config), config);
    if (options.json) {
      fmt::print("{}\n", describe(family).dump(2));
    } else {
      fmt::print(
          "{} (model_type {})\n",
          family.name,
          fmt::join(family.model_types, ", "));
    }
    return kOk;
  }
  if (options.markdown) {
    fmt::print("{}", families_markdown());
  } else if (options.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const Family* family : families()) {
      list.push_back(describe(*family));
    }
    fmt::print("{}\n", list.dump(2));
  } else {
    print_table();
  }
  return kOk;
}

}  // namespace

Action declare_arch(CLI::App& app) {
  auto options = std::make_shared<ArchOptions>();
  CLI::Option* folder = app.add_option(
      "model", options->folder, "A checkpoint folder: print its family alone");
  folder->type_name("DIR");
  CLI::Option* json = app.add_flag("--json", options->json, "Print JSON");
  app.add_flag(
         "--markdown", options->markdown, "Print the table of docs/families.md")
      ->excludes(json)
      ->excludes(folder);
  return [options] { return run_arch(*options); };
}

}  // namespace mlxcel::cli
