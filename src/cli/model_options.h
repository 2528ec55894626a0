// The options that say which model to load and how, shared by all commands.
#pragma once

#include "loading/pipeline.h"

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace mlxcel::cli {

struct ModelOptions {
  std::string model;
  std::string backend;  // empty: MLXCEL_DEVICE, else auto
  std::string dtype;
  std::string surgery;
  int threads = 0;
  bool no_mmap = false;
  bool mlock = false;
  bool prefill_int8 = false;
  bool deterministic = false;
  bool lora_fuse = false;
  std::vector<AdapterRequest> adapters;  // in the command line's order
};

// `options` must outlive the parse.
void declare_model_options(CLI::App& app, ModelOptions& options);
// Only --model, for commands that load nothing.
void declare_model_path(CLI::App& app, ModelOptions& options);

// Resolves the model's name and the combination of adapter flags. Throws
// UsageError for values that do not make sense.
LoadOptions load_options(const ModelOptions& options);

// "DIR[,DIR...]" and "DIR:SCALE[,DIR:SCALE...]" (split at the last colon). One
// folder, commas and all, where there is such a folder.
// Throws UsageError that names the entry.
std::vector<AdapterRequest> parse_adapters(
    const std::string& flag, const std::string& list, bool scaled, bool fuse);

DType parse_activation_dtype(const std::string& name);

// The scales of a run without scales of its own: each live adapter's, by id.
std::vector<float> adapter_scales(const LoadOptions& options);

}  // namespace mlxcel::cli
