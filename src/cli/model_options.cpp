#include "cli/model_options.h"

#include "cli/console.h"
#include "cli/environment.h"
#include "cli/model_store.h"
#include "cli/unbuilt_options.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <filesystem>

namespace mlxcel::cli {

namespace {

float parse_scale(const std::string& flag, const std::string& entry) {
  size_t colon = entry.rfind(':');
  std::string_view text;
  if (colon != std::string::npos) {
    text = std::string_view(entry).substr(colon + 1);
  }
  std::string_view digits = text;
  if (digits.starts_with("+") && !digits.starts_with("+-")) {
    digits.remove_prefix(1);
  }
  // A double first: what is too small for a float is zero, and finite.
  double value = 0;
  auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value);
  auto scale = float(value);
  if (digits.empty() || error != std::errc() ||
      end != digits.data() + digits.size() || !std::isfinite(scale)) {
    throw UsageError(
        cat("wrong scale in ", flag, " ", entry),
        text.empty() ? "there is no number after a last colon"
                     : cat("'", text, "' is not a finite number"),
        cat("write ", flag, " DIR:SCALE, for example ./my-adapter:0.5"));
  }
  return scale;
}

// Commas separate folders, but belong to the name of a folder that is there.
bool is_one_adapter(const std::string& list, bool scaled) {
  std::error_code error;
  return std::filesystem::is_directory(
      scaled ? list.substr(0, list.rfind(':')) : list, error);
}

}  // namespace

std::vector<AdapterRequest> parse_adapters(
    const std::string& flag, const std::string& list, bool scaled, bool fuse) {
  std::vector<AdapterRequest> out;
  bool one = is_one_adapter(list, scaled);
  size_t begin = 0;
  while (begin <= list.size()) {
    size_t end =
        one ? list.size() : std::min(list.find(',', begin), list.size());
    std::string entry = list.substr(begin, end - begin);
    begin = end + 1;
    AdapterRequest request;
    request.fuse = fuse;
    request.folder = entry;
    if (scaled) {
      request.scale = parse_scale(flag, entry);
      request.folder = entry.substr(0, entry.rfind(':'));
    }
    if (request.folder.empty()) {
      throw UsageError(
          cat("wrong list for ", flag),
          cat("'", list, "' has an entry without a folder"),
          cat("write ", flag, scaled ? " DIR:SCALE,DIR:SCALE" : " DIR,DIR"));
    }
    out.push_back(std::move(request));
  }
  return out;
}

void declare_model_path(CLI::App& app, ModelOptions& options) {
  app.add_option(
         "-m,--model",
         options.model,
         "Checkpoint folder, or a name in the model store; without it the "
         "default model")
      ->type_name("DIR");
}

void declare_model_options(CLI::App& app, ModelOptions& options) {
  declare_model_path(app, options);
  auto adapter_flag =
      [&](const char* name, bool scaled, bool fuse, const char* help) {
        app.add_option_function<std::string>(
               name,
               [&options, flag = std::string(name), scaled, fuse](
                   const std::string& list) {
                 for (AdapterRequest& request :
                      parse_adapters(flag, list, scaled, fuse)) {
                   options.adapters.push_back(std::move(request));
                 }
               },
               help)
            ->type_name(scaled ? "DIR:SCALE,..." : "DIR,...")
            ->trigger_on_parse()
            ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
            ->group("Adapters");
      };
  adapter_flag(
      "--adapter",
      false,
      true,
      "LoRA adapters to fuse into the weights; a folder with a comma in its "
      "name: alone in a flag of its own");
  adapter_flag(
      "--lora",
      false,
      false,
      "LoRA adapters to keep unfused, scale 1; commas as above");
  adapter_flag(
      "--lora-scaled",
      true,
      false,
      "Unfused LoRA adapters, each with a scale after its last colon");
  app.add_flag(
         "--lora-fuse",
         options.lora_fuse,
         "Fuse the adapters of --lora and --lora-scaled too")
      ->group("Adapters");
  app.add_option(
         "--surgery",
         options.surgery,
         "YAML recipe applied to the weights before adapters "
         "[env MLXCEL_SURGERY]")
      ->type_name("FILE")
      ->group("Adapters");

  auto device = [](CLI::Option* option) { option->group("Device"); };
  device(app.add_option(
                "--backend",
                options.backend,
                "cpu, graph (MLX), or auto for what suits the machine "
                "[env MLXCEL_DEVICE: auto, cpu, gpu]")
             ->check(CLI::IsMember({"auto", "cpu", "graph"})));
  device(app.add_option(
                "--dtype",
                options.dtype,
                "Activations: f32, f16 or bf16; default the checkpoint's")
             ->check(CLI::IsMember({"f32", "f16", "bf16"})));
  device(app.add_option(
                "--threads",
                options.threads,
                "CPU threads; 0 for all this process may use")
             ->check(CLI::Range(0, 4096)));
  device(app.add_flag(
      "--no-mmap", options.no_mmap, "Read the weights into memory"));
  device(app.add_flag(
      "--mlock", options.mlock, "Keep the weights from being swapped out"));
  device(app.add_flag(
      "--prefill-int8",
      options.prefill_int8,
      "8-bit activations while reading prompts: faster, less exact"));
  device(app.add_flag(
      "--deterministic",
      options.deterministic,
      "Same bits however a conversation is cut: cached answers are read "
      "again"));
}

DType parse_activation_dtype(const std::string& name) {
  return name == "f32" ? DType::f32 : name == "f16" ? DType::f16 : DType::bf16;
}

// --backend, else MLXCEL_DEVICE, whose gpu is the graph backend.
BackendKind backend_kind(const std::string& option) {
  if (option == "cpu") {
    return BackendKind::cpu;
  }
  if (option == "graph") {
    return BackendKind::graph;
  }
  std::string device = environment("MLXCEL_DEVICE");
  if (!option.empty() || device.empty() || device == "auto") {
    return BackendKind::automatic;
  }
  if (device == "cpu") {
    return BackendKind::cpu;
  }
  if (device != "gpu") {
    throw UsageError(
        cat("MLXCEL_DEVICE is '", device, "'"),
        "it says where to compute: auto, cpu or gpu",
        "unset it, or give --backend");
  }
  if (!graph_backend_has_gpu()) {
    throw UsageError(
        "MLXCEL_DEVICE is gpu, and there is none",
        "MLX sees no GPU here, or the graph backend is not installed",
        "unset it, or give --backend");
  }
  return BackendKind::graph;
}

LoadOptions load_options(const ModelOptions& options) {
  refuse_unbuilt_variables();
  LoadOptions load;
  load.model = find_model(options.model);
  load.backend = backend_kind(options.backend);
  if (!options.dtype.empty()) {
    load.dtype = parse_activation_dtype(options.dtype);
  }
  load.threads = options.threads;
  load.mmap = !options.no_mmap;
  load.mlock = options.mlock;
  load.prefill_int8 = options.prefill_int8;
  load.adapters = options.adapters;
  if (options.lora_fuse) {
    for (AdapterRequest& adapter : load.adapters) {
      adapter.fuse = true;
    }
  }
  if (!options.surgery.empty()) {
    load.surgery = options.surgery;
  }
  load.progress = load_progress();
  return load;
}

std::vector<float> adapter_scales(const LoadOptions& options) {
  std::vector<float> scales;
  bool live = false;
  for (const AdapterRequest& adapter : options.adapters) {
    scales.push_back(adapter.fuse ? 0.f : adapter.scale);
    live = live || !adapter.fuse;
  }
  return live ? scales : std::vector<float>();
}

}  // namespace mlxcel::cli
