// Finds and opens the graph backend's library. Its one C function takes the
// options and gives the backend; C++ exceptions pass through, since both sides
// share this program's error types.
#include "core/error.h"
#include "ops/backend.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <vector>

namespace mlxcel {

namespace {

namespace fs = std::filesystem;

#ifdef __APPLE__
constexpr const char* kLibrary = "libmlxcel_graph.dylib";
#else
constexpr const char* kLibrary = "libmlxcel_graph.so";
#endif

using Factory = void (*)(const BackendOptions* options, Backend** backend);

fs::path program_folder() {
  std::error_code none;
  fs::path program = fs::read_symlink("/proc/self/exe", none);
  return none ? fs::path() : program.parent_path();
}

// The environment's choice alone, or the install tree, then the build tree.
std::vector<fs::path> candidates() {
  if (const char* chosen = std::getenv("MLXCEL_GRAPH_LIBRARY");
      chosen && *chosen) {
    return {chosen};
  }
  fs::path folder = program_folder();
  if (folder.empty()) {
    return {kLibrary};  // the loader's own search path
  }
  fs::path lib = folder.parent_path() / "lib";
  return {lib / "mlxcel" / kLibrary, lib / kLibrary};
}

Factory load_factory() {
  std::string looked;
  for (const fs::path& file : candidates()) {
    if (file.has_parent_path() && !fs::exists(file)) {
      looked += cat(looked.empty() ? "no file " : ", ", file.string());
      continue;
    }
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* reason = dlerror();
      throw UsageError(
          cat("cannot open the graph backend ", file.string()),
          reason ? reason : "",
          "install the MLX it was built with, or use --backend cpu");
    }
    if (void* factory = dlsym(library, "mlxcel_make_graph_backend")) {
      return reinterpret_cast<Factory>(factory);
    }
    dlclose(library);
    throw UsageError(
        cat(file.string(), " is not a graph backend of mlxcel"),
        "it has no function mlxcel_make_graph_backend",
        "set MLXCEL_GRAPH_LIBRARY to the library of this build");
  }
  throw UsageError(
      "the graph backend is not installed",
      looked,
      "build with -DMLXCEL_GRAPH=ON, name the library in MLXCEL_GRAPH_LIBRARY, "
      "or use --backend cpu");
}

}  // namespace

std::unique_ptr<Backend> make_graph_backend(const BackendOptions& options) {
  static std::mutex mutex;
  static Factory factory = nullptr;  // stays open: MLX cannot be unloaded
  {
    std::lock_guard lock(mutex);
    if (!factory) {
      factory = load_factory();
    }
  }
  Backend* backend = nullptr;
  factory(&options, &backend);
  return std::unique_ptr<Backend>(backend);
}

}  // namespace mlxcel
