// Variables of the environment that belong to what this version has not.
#include "cli/environment.h"
#include "cli/unbuilt_options.h"

#include "core/error.h"
#include "core/log.h"

#include <algorithm>

namespace mlxcel::cli {

namespace {

struct UnbuiltVariable {
  const char* name;
  const char* subject;
  std::vector<std::string> neutral;  // values that change nothing
  Program program = Program::any;
};

std::vector<UnbuiltVariable> variables() {
  auto tables = "per-layer embeddings read on demand";
  auto experts = "streaming of experts";
  auto allocator = "limits on MLX's allocator";
  auto vertex = "container contract of Vertex AI";
  std::vector<std::string> off = {"0", "off", "false"};
  return {
      {"MLXCEL_PLE_IO", tables, {"mmap"}},
      {"MLXCEL_PLE_CACHE_BYTES", tables, {}},
      {"MLXCEL_EXPERT_STREAM", experts, {"auto", "0"}},
      {"MLXCEL_EXPERT_ARENA_BYTES", experts, {}},
      {"MLXCEL_MEMORY_LIMIT", allocator, {}},
      {"MLXCEL_CACHE_LIMIT", allocator, {}},
      {"MLXCEL_WIRED_LIMIT", allocator, {}},
      {"MLXCEL_CACHE_CLEAR_INTERVAL", allocator, {"256"}},
      {"MLXCEL_LOOP_DETECTION", "detection of loops in answers", off},
      {"MLXCEL_SPECULATIVE_STOCHASTIC_ACCEPT", "speculative decoding", off},
      {"MLXCEL_ALLOW_PRIVATE_MEDIA_URLS",
       "image, audio and video input",
       off,
       Program::server},
      {"MLXCEL_ENABLE_SETTINGS_ENDPOINT",
       "settings that change while it runs",
       off,
       Program::server},
      {"AIP_HTTP_PORT", vertex, {}, Program::server},
      {"AIP_HEALTH_ROUTE", vertex, {}, Program::server},
      {"AIP_PREDICT_ROUTE", vertex, {}, Program::server},
  };
}

// A choice of speed that this version does not have: nothing goes wrong without
// it, so it is said, not refused.
void warn_of_pinned_load() {
  static bool said = false;
  std::string value = environment("MLXCEL_CUDA_PINNED_LOAD");
  if (!said && !value.empty() && value != "0") {
    said = true;
    log_warning(
        cat("MLXCEL_CUDA_PINNED_LOAD=",
            value,
            " has no effect: this version loads to GPUs from pageable memory, "
            "as with MLXCEL_CUDA_PINNED_LOAD=0"));
  }
}

}  // namespace

void refuse_unbuilt_variables(Program program) {
  warn_of_pinned_load();
  for (const UnbuiltVariable& variable : variables()) {
    std::string value = environment(variable.name);
    bool applies =
        variable.program == Program::any || variable.program == program;
    if (!applies || value.empty() ||
        std::find(variable.neutral.begin(), variable.neutral.end(), value) !=
            variable.neutral.end()) {
      continue;
    }
    throw UsageError(
        cat(variable.name, "=", value, " in the environment is not built yet"),
        cat("this version has no ", variable.subject),
        variable.neutral.empty()
            ? std::string("unset it")
            : cat("unset it, or set it to ", variable.neutral.front()));
  }
}

}  // namespace mlxcel::cli
