#include "adapters/config.h"

#include "adapters/folder.h"
#include "core/error.h"
#include "io/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace mlxcel {

namespace {

using nlohmann::json;

constexpr const char* kForm =
    "write it as {\"fine_tune_type\": \"lora\", \"lora_parameters\": "
    "{\"rank\": 8, \"scale\": 20.0}}";

constexpr const char* kFuse =
    "fuse it into its base checkpoint with the tool that trained it, and load "
    "the result as a model";

// A finite number, or nothing when the key is absent or null.
std::optional<double> number(
    const json& object, const char* key, const std::string& file) {
  auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    return std::nullopt;
  }
  if (!found->is_number() || !std::isfinite(found->get<double>())) {
    throw AdapterError(
        cat("adapter config ", file, " has an unusable value"),
        cat("lora_parameters.",
            key,
            " is ",
            found->dump(),
            ", and a finite number is needed"),
        cat("correct ", key, ", or leave it out to get the default"));
  }
  return found->get<double>();
}

int64_t read_rank(const json& parameters, const std::string& file) {
  std::optional<double> value = number(parameters, "rank", file);
  if (!value) {
    return AdapterConfig{}.rank;
  }
  // The upper bound only keeps the conversion defined.
  if (*value < 1 || *value > 1e9 || *value != std::floor(*value)) {
    throw AdapterError(
        cat("adapter config ", file, " has an unusable value"),
        cat("lora_parameters.rank is ",
            parameters.at("rank").dump(),
            ", and a whole number of at least 1 is needed"),
        "set rank to the inner dimension of the lora_a and lora_b tensors");
  }
  return int64_t(*value);
}

void check_type(const json& root, const std::string& file) {
  // What mlx-lm wrote before it had fine_tune_type.
  auto old = root.find("use_dora");
  if (old != root.end() && *old == true) {
    refuse_dora(cat(file, " says use_dora"), kFuse);
  }
  auto found = root.find("fine_tune_type");
  if (found == root.end() || found->is_null()) {
    return;
  }
  if (!found->is_string()) {
    throw AdapterError(
        cat("adapter config ", file, " has an unusable value"),
        cat("fine_tune_type is ", found->dump(), ", and a string is needed"),
        "mlxcel applies fine_tune_type \"lora\"");
  }
  std::string type = found->get<std::string>();
  if (type == "lora") {
    return;
  }
  if (type == "dora") {
    refuse_dora(cat(file, " says fine_tune_type \"dora\""), kFuse);
  }
  throw AdapterError(
      cat("fine_tune_type \"", type, "\" is not supported"),
      cat(file, " describes no low-rank adapter"),
      type == "full"
          ? "a full fine-tune is a model of its own: save it as a checkpoint "
            "and load it with --model"
          : "mlxcel applies fine_tune_type \"lora\"");
}

void check_form(const json& root, const std::string& file) {
  auto parameters = root.find("lora_parameters");
  bool stated = parameters != root.end() && !parameters->is_null();
  // PEFT writes rank and alpha at the top level; read with our defaults they
  // would be ignored and scale 20 applied.
  if (root.contains("peft_type") || (root.contains("r") && !stated)) {
    throw AdapterError(
        cat("adapter config ", file, " is in PEFT's form"),
        "peft_type or r at the top level instead of lora_parameters",
        "convert the folder with mlxcel convert-adapter PEFT_DIR OUT_DIR");
  }
  // The same holds for our own fields in the wrong place.
  for (const char* key : {"rank", "scale", "lora_alpha"}) {
    if (root.contains(key) && !stated) {
      throw AdapterError(
          cat("adapter config ", file, " has a field in the wrong place"),
          cat(key, " is at the top level, where it would not be read"),
          kForm);
    }
  }
}

}  // namespace

double AdapterConfig::factor() const {
  return alpha ? *alpha / double(rank) : scale;
}

AdapterConfig parse_adapter_config(
    const std::string& text, const std::string& file) {
  json root;
  try {
    root = parse_json(text, file);
  } catch (const ConfigError& error) {
    throw AdapterError(
        cat("cannot read adapter config ", file), error.why(), kForm);
  }
  if (!root.is_object()) {
    throw AdapterError(
        cat("cannot read adapter config ", file),
        cat("its top level is a JSON ", root.type_name(), ", not an object"),
        kForm);
  }
  check_type(root, file);
  check_form(root, file);

  AdapterConfig config;
  auto parameters = root.find("lora_parameters");
  if (parameters != root.end() && !parameters->is_null()) {
    if (!parameters->is_object()) {
      throw AdapterError(
          cat("cannot read adapter config ", file),
          cat("lora_parameters is a JSON ",
              parameters->type_name(),
              ", not an object"),
          kForm);
    }
    config.rank = read_rank(*parameters, file);
    config.alpha = number(*parameters, "lora_alpha", file);
    config.scale = number(*parameters, "scale", file).value_or(config.scale);
  }
  // Kernels multiply by it in f32.
  if (!std::isfinite(float(config.factor()))) {
    throw AdapterError(
        cat("adapter config ", file, " has an unusable value"),
        cat("its scale comes to ",
            config.factor(),
            ", beyond the range of f32"),
        "correct scale, or lora_alpha and rank");
  }
  auto task = root.find("task_name");
  if (task != root.end() && task->is_string()) {
    config.task_name = task->get<std::string>();
  }
  return config;
}

AdapterConfig read_adapter_config(const std::filesystem::path& folder) {
  std::filesystem::path path = folder / "adapter_config.json";
  std::string text = read_adapter_config_text(
      path,
      "an adapter folder holds adapter_config.json and adapters.safetensors");
  return parse_adapter_config(text, path.string());
}

}  // namespace mlxcel
