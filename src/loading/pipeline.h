// The one loading pipeline: folder -> config -> family -> weights -> surgery ->
// adapters -> backend -> model. Every command and the server load through it.
#pragma once

#include "io/config.h"
#include "io/weight_map.h"
#include "loading/rope_override.h"
#include "models/model.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mlxcel {

struct Adapter;
struct Family;

enum class BackendKind : uint8_t { automatic, cpu, graph };

struct AdapterRequest {
  std::filesystem::path folder;
  float scale = 1;
  bool fuse = true;  // into the weights; else a live term
  // Read before; unset: from the folder. Without either, the id stays free.
  std::shared_ptr<const Adapter> read;
};

struct LoadOptions {
  std::filesystem::path model;  // a folder, or a file inside it
  BackendKind backend = BackendKind::automatic;
  int threads = 0;  // 0: what the process may use
  bool mmap = true;
  bool mlock = false;
  bool prefill_int8 = false;
  bool digest = false;  // compute LoadedModel::digest, which reads all weights
  std::optional<DType> dtype;  // activations; unset: the checkpoint's
  std::vector<AdapterRequest> adapters;
  std::optional<std::filesystem::path> surgery;  // unset: MLXCEL_SURGERY
  RopeOverride rope;
  // Called with phase name and share done in [0, 1].
  std::function<void(std::string_view phase, double done)> progress;
};

struct LoadedAdapter {
  std::string path;       // as the user gave it
  std::string task_name;  // the config's, else the folder's name
  std::string digest;     // of its content
  float scale = 1;        // at load
  bool fused = true;      // else a live term
};

struct LoadedModel {
  std::filesystem::path folder;
  Config config;
  const Family* family = nullptr;
  std::unique_ptr<Backend> backend;  // outlives the model
  std::unique_ptr<Model> model;
  // In the order given. An adapter's id is its place here, fused or live.
  std::vector<LoadedAdapter> adapters;
  DType activation_dtype = DType::f32;
  size_t weight_bytes = 0;  // of the file's tensors
  double seconds = 0;
  // Of the config and the weights as they are used, when asked for.
  std::string digest;
  int64_t max_positions = 0;  // config's context length; 0: not stated
};

// Throws ConfigError, CheckpointError, AdapterError or SurgeryError. Nothing is
// half applied: everything is checked before a weight changes.
LoadedModel load_model(const LoadOptions& options);

}  // namespace mlxcel
