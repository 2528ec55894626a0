// `mlxcel arch`: the registry of model families, or what a folder resolves to,
// why, and where its tensors go.
#include "cli/command.h"
#include "cli/model_store.h"
#include "cli/tensor_places.h"
#include "core/error.h"
#include "io/checkpoint.h"
#include "loading/check_model.h"
#include "loading/config_file.h"
#include "loading/detect.h"
#include "models/registry.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <memory>

namespace mlxcel::cli {

namespace {

using Json = nlohmann::ordered_json;

struct ArchOptions {
  std::string folder;
  bool json = false;
  bool markdown = false;
};

Json describe(const Family& family) {
  Json out = {
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
  if (!family.picked_by.empty()) {
    out["picked_by"] = family.picked_by;
  }
  return out;
}

void print_table() {
  fmt::print(
      "{:<24}{:<36}{:<12}{:<18}{}\n",
      "family",
      "model_type",
      "kind",
      "route",
      "adapters");
  for (const Family* family : families()) {
    fmt::print(
        "{:<24}{:<36}{:<12}{:<18}{}{}\n",
        family->name,
        family->picked_by.empty()
            ? fmt::format("{}", fmt::join(family->model_types, ", "))
            : family->picked_by,
        name_of(family->kind),
        name_of(family->directory_route),
        family->adapters == AdapterSupport::supported ? "yes" : "no",
        family->decoder ? "" : "  (not built yet)");
  }
}

// Whether the family's own model would be built from the folder.
bool runs(const Detection& detection) {
  return detection.kind == ModelKind::generation &&
         detection.family->decoder != nullptr && !detection.vision_tower;
}

std::vector<TensorPlace> places_in(
    const std::filesystem::path& folder,
    const Detection& detection,
    const Config& config) {
  if (!runs(detection)) {
    return {};
  }
  NameMap names(
      detection.family->names, decoder_spec(*detection.family, config));
  WeightMap weights = load_weights(folder);
  return tensor_places(*detection.family, names, config, weights);
}

void print_places(const std::vector<TensorPlace>& places) {
  size_t width = 0;
  for (const TensorPlace& place : places) {
    width = std::max(width, place.tensor.size());
  }
  fmt::print("\n{:<{}}  {:>5}  {}\n", "tensor", width, "count", "goes to");
  for (const TensorPlace& place : places) {
    fmt::print(
        "{:<{}}  {:>5}  {}\n", place.tensor, width, place.count, place.role);
  }
}

int describe_folder(const ArchOptions& options) {
  std::filesystem::path folder = checkpoint_folder(find_model(options.folder));
  Config config = read_config(folder);
  Detection detection = detect_model(folder, config);
  std::vector<TensorPlace> places = places_in(folder, detection, config);
  std::string refusal = runs(detection) ? refusal_of(folder) : "not built yet";
  const Family* family = detection.family;
  std::string evidence = detection.evidence.empty() ? "nothing says otherwise"
                                                    : detection.evidence;
  std::string layout =
      config.layout() == WeightsLayout::mlx ? "MLX" : "published";
  if (options.json) {
    Json out = family != nullptr ? describe(*family) : Json::object();
    out["path"] = folder.string();
    out["type"] = detection.type;
    out["kind"] = name_of(detection.kind);
    out["kind_because"] = evidence;
    out["model_type"] = detection.model_type;
    out["layout"] = layout;
    out["vision_tower"] = detection.vision_tower;
    out["vision_because"] = detection.vision_evidence;
    out["runs"] = refusal.empty();
    out["refusal"] = refusal;
    out["tensors"] = Json::array();
    for (const TensorPlace& place : places) {
      out["tensors"].push_back(
          {{"tensor", place.tensor},
           {"count", place.count},
           {"role", place.role}});
    }
    fmt::print("{}\n", out.dump(2));
    return kOk;
  }
  auto line = [](std::string_view name, const std::string& value) {
    fmt::print("{:<18}{}\n", name, value);
  };
  line("Path", folder.string());
  line("Kind", cat(name_of(detection.kind), " (", evidence, ")"));
  if (family != nullptr) {
    line("Family", cat(family->name, ", type ", detection.type));
    line("Decided by", cat("model_type ", detection.model_type));
    line(
        "Routes",
        cat(name_of(family->directory_route),
            ", weights ",
            name_of(family->weight_route)));
    line(
        "Adapters",
        family->adapters == AdapterSupport::supported
            ? "yes"
            : family->adapter_refusal);
  }
  line("Layout", layout);
  if (!detection.vision_evidence.empty()) {
    line(
        "Vision tower",
        cat(detection.vision_tower ? "yes" : "no, text only",
            " (",
            detection.vision_evidence,
            ")"));
  }
  line("Runs", refusal.empty() ? "yes" : cat("no: ", refusal));
  if (!runs(detection)) {
    return kOk;
  }
  print_places(places);
  return kOk;
}

int run_arch(const ArchOptions& options) {
  if (!options.folder.empty()) {
    return describe_folder(options);
  }
  if (options.markdown) {
    fmt::print("{}", families_markdown());
  } else if (options.json) {
    Json list = Json::array();
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
      "model",
      options->folder,
      "A checkpoint folder: print what it is, why, and where its tensors go");
  folder->type_name("DIR");
  CLI::Option* json = app.add_flag("--json", options->json, "Print JSON");
  app.add_flag(
         "--markdown", options->markdown, "Print the table of docs/families.md")
      ->excludes(json)
      ->excludes(folder);
  return [options] { return run_arch(*options); };
}

}  // namespace mlxcel::cli
