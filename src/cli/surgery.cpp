// `mlxcel surgery plan`: what a recipe would do to a checkpoint, from the
// tensor headers alone; with --measure also how far each tensor moves.
#include "surgery/surgery.h"

#include "cli/checkpoint_facts.h"
#include "cli/command.h"
#include "cli/console.h"
#include "cli/model_options.h"
#include "cli/model_store.h"
#include "core/error.h"
#include "loading/compose.h"
#include "loading/sanitize_weights.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <memory>
#include <set>

namespace mlxcel::cli {

namespace {

struct SurgeryOptions {
  std::string action = "plan";
  ModelOptions model;
  bool measure = false;
  bool json = false;
};

using Changes = std::map<std::string, TensorChange>;

Changes measure(
    const std::vector<PlannedOperation>& plan,
    WeightMap weights,
    int threads,
    const std::function<void(std::string_view, double)>& progress) {
  Changes out;
  ThreadPool pool(threads);
  apply_surgery(
      plan,
      weights,
      pool,
      [&](double done) {
        if (progress) {
          progress("surgery", done);
        }
      },
      [&](const std::string& key,
          const WeightTensor& before,
          const WeightTensor& after) {
        out[key] = measure_change(before, after, pool);
      });
  clear_progress();
  return out;
}

std::set<std::string> edited_keys(const PlannedOperation& operation) {
  std::set<std::string> keys;
  for (const TensorEdit& edit : operation.edits) {
    keys.insert(edit.key);
  }
  return keys;
}

nlohmann::ordered_json tensor_json(
    const std::string& key, const WeightTensor& tensor) {
  return {
      {"key", key},
      {"dtype", name_of(tensor.dtype)},
      {"shape", tensor.shape},
      {"bytes", tensor.bytes}};
}

nlohmann::ordered_json as_json(
    const std::vector<PlannedOperation>& plan,
    const WeightMap& weights,
    const Changes& changes,
    const SurgeryOptions& options) {
  nlohmann::ordered_json operations = nlohmann::ordered_json::array();
  for (const PlannedOperation& planned : plan) {
    nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
    for (const std::string& key : edited_keys(planned)) {
      tensors.push_back(tensor_json(key, weights.at(key)));
    }
    operations.push_back({
        {"op", name_of(planned.operation->kind)},
        {"place", planned.operation->place},
        {"pattern", planned.operation->pattern.text()},
        {"matched", planned.matched},
        {"changed", tensors},
    });
  }
  nlohmann::ordered_json out = {{"operations", operations}};
  if (options.measure) {
    nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
    for (const auto& [key, change] : changes) {
      nlohmann::ordered_json entry = {
          {"key", key},
          {"elements", element_count(weights.at(key).shape)},
          {"elements_changed", change.elements_changed}};
      if (is_float(weights.at(key).dtype)) {
        entry["norm_before"] = change.norm_before;
        entry["norm_after"] = change.norm_after;
        entry["norm_of_change"] = change.norm_of_change;
      }
      tensors.push_back(std::move(entry));
    }
    out["measured"] = tensors;
  }
  return out;
}

std::string describe(const std::string& key, const WeightTensor& tensor) {
  return fmt::format(
      "  {:<54} {:<5} {}", key, name_of(tensor.dtype), to_string(tensor.shape));
}

void print_plan(
    const std::vector<PlannedOperation>& plan, const WeightMap& weights) {
  if (plan.empty()) {
    fmt::print("No operations: the model stays as it is.\n");
  }
  for (size_t i = 0; i < plan.size(); ++i) {
    const PlannedOperation& planned = plan[i];
    std::set<std::string> keys = edited_keys(planned);
    fmt::print(
        "{}. {} {}  ({})\n  {} of {} tensors match, {} change{}\n",
        i + 1,
        name_of(planned.operation->kind),
        planned.operation->pattern.text(),
        planned.operation->place,
        planned.matched.size(),
        weights.size(),
        keys.size(),
        keys.size() == 1 ? "s" : "");
    for (const std::string& key : keys) {
      fmt::print("{}\n", describe(key, weights.at(key)));
    }
  }
}

void print_changes(const WeightMap& weights, const Changes& changes) {
  fmt::print("\nMeasured, all operations together\n");
  for (const auto& [key, change] : changes) {
    const WeightTensor& tensor = weights.at(key);
    double elements = double(element_count(tensor.shape));
    std::string norms = "packed codes";
    if (is_float(tensor.dtype)) {
      norms = fmt::format(
          "norm {:.6g} -> {:.6g}, moved by {:.6g}{}",
          change.norm_before,
          change.norm_after,
          change.norm_of_change,
          change.norm_before > 0
              ? fmt::format(
                    " ({:.3g}%)",
                    100 * change.norm_of_change / change.norm_before)
              : "");
    }
    fmt::print(
        "  {:<54} {}; {:.3g}% of the elements differ\n",
        key,
        norms,
        elements > 0 ? 100 * double(change.elements_changed) / elements : 0);
  }
}

int run_surgery(const SurgeryOptions& options) {
  LoadOptions load;
  load.threads = options.model.threads;
  if (!options.model.surgery.empty()) {
    load.surgery = options.model.surgery;
  }
  std::filesystem::path path = recipe_path(load);
  if (path.empty()) {
    throw UsageError(
        "no recipe",
        "neither --surgery nor MLXCEL_SURGERY names one",
        "give --surgery FILE");
  }
  Recipe recipe = read_recipe(path);
  CheckpointFacts facts =
      read_checkpoint_facts(find_model(options.model.model));
  NameMap names(facts.family->names, facts.spec);
  sanitize_weights(
      facts.config,
      names,
      facts.weights,
      options.measure ? TensorData::readable : TensorData::headers_only);
  std::vector<PlannedOperation> plan =
      plan_surgery(recipe, {facts.spec, names}, facts.weights);
  check_formats(facts.weights, facts.config);
  Changes changes;
  if (options.measure) {
    changes =
        measure(plan, facts.weights, options.model.threads, load_progress());
  }
  if (options.json) {
    fmt::print("{}\n", as_json(plan, facts.weights, changes, options).dump(2));
    return kOk;
  }
  print_plan(plan, facts.weights);
  if (options.measure) {
    print_changes(facts.weights, changes);
  }
  return kOk;
}

}  // namespace

Action declare_surgery(CLI::App& app) {
  auto options = std::make_shared<SurgeryOptions>();
  app.add_option("action", options->action, "plan: show what would change")
      ->required()
      ->check(CLI::IsMember({"plan"}));
  declare_model_path(app, options->model);
  app.add_option(
         "--surgery", options->model.surgery, "The recipe [env MLXCEL_SURGERY]")
      ->type_name("FILE");
  app.add_flag(
      "--measure",
      options->measure,
      "Carry it out in memory and show how far each tensor moves");
  app.add_option(
         "--threads",
         options->model.threads,
         "CPU threads; 0 for all this process may use")
      ->check(CLI::Range(0, 4096));
  app.add_flag("--json", options->json, "Print JSON");
  return [options] { return run_surgery(*options); };
}

}  // namespace mlxcel::cli
