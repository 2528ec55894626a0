#include "cli/model_store.h"

#include "cli/environment.h"

#include "core/error.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace mlxcel::cli {

namespace fs = std::filesystem;

namespace {

fs::path program_prefix() {
  std::error_code error;
  fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : program.parent_path().parent_path();
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

std::vector<std::string> stored_names() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(model_store(), error)) {
    if (is_folder(entry.path())) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

fs::path model_store() {
  if (std::string named = environment("MLXCEL_MODELS_DIR"); !named.empty()) {
    return named;
  }
  std::string cache = environment("MLXCEL_CACHE_DIR");
  fs::path root = !cache.empty()
                      ? fs::path(cache)
                      : fs::path(environment("HOME")) / ".cache/mlxcel";
  return root / "models";
}

fs::path find_model(const std::string& argument) {
  if (argument.empty()) {
    std::vector<fs::path> places = {model_store() / kDefaultModel};
    if (fs::path prefix = program_prefix(); !prefix.empty()) {
      places.push_back(prefix / "share/mlxcel/models" / kDefaultModel);
    }
    for (const fs::path& place : places) {
      if (fs::exists(place / "config.json")) {
        return place;
      }
    }
    std::string looked;
    for (const fs::path& place : places) {
      looked += (looked.empty() ? "" : ", ") + place.string();
    }
    throw CheckpointError(
        "no model",
        cat("--model is not given and the default model is in none of ",
            looked),
        cat("give --model DIR, fetch the default model with ./dev model, or "
            "make it from a GGUF file with mlxcel import-gguf FILE ",
            places.front().string()));
  }
  std::error_code error;
  if (fs::exists(argument, error)) {
    if (argument.ends_with(".gguf") && !is_folder(argument)) {
      throw UsageError(
          cat(argument, " is a GGUF file"),
          "models are folders of safetensors",
          cat("make one of it: mlxcel import-gguf ", argument, " OUT_DIR"));
    }
    return argument;
  }
  std::vector<fs::path> places = {model_store() / argument};
  std::string organisation = environment("MLXCEL_DEFAULT_ORG");
  if (!organisation.empty() && argument.find('/') == std::string::npos) {
    places.push_back(model_store() / organisation / argument);
  }
  for (const fs::path& place : places) {
    if (is_folder(place)) {
      return place;
    }
  }
  std::string near = did_you_mean(argument, stored_names());
  throw CheckpointError(
      cat("no model ", argument),
      cat("it is no path and the store ",
          model_store().string(),
          " has no such name"),
      near.empty() ? "give --model a checkpoint folder" : near);
}

}  // namespace mlxcel::cli
