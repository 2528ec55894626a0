// Finds and opens the graph backend's library. One C function takes the options
// and gives the backend, another says whether MLX sees a GPU. C++ exceptions
// pass through, since both sides share this program's error types.
#include "core/error.h"
#include "ops/backend.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <map>
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

struct Library {
  void (*make)(const BackendOptions* options, Backend** backend);
  bool (*has_gpu)();
};

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

fs::path find_library() {
  std::string looked;
  for (const fs::path& file : candidates()) {
    if (!file.has_parent_path() || fs::exists(file)) {
      return file;
    }
    looked += cat(looked.empty() ? "no file " : ", ", file.string());
  }
  throw UsageError(
      "the graph backend is not installed",
      looked,
      "build with -DMLXCEL_GRAPH=ON, name the library in MLXCEL_GRAPH_LIBRARY, "
      "or use --backend cpu");
}

Library load_library(const fs::path& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    throw UsageError(
        cat("cannot open the graph backend ", file.string()),
        reason ? reason : "",
        "install the MLX it was built with, or use --backend cpu");
  }
  void* make = dlsym(library, "mlxcel_make_graph_backend");
  void* has_gpu = dlsym(library, "mlxcel_graph_has_gpu");
  if (make && has_gpu) {
    return {
        reinterpret_cast<decltype(Library::make)>(make),
        reinterpret_cast<decltype(Library::has_gpu)>(has_gpu)};
  }
  dlclose(library);
  throw UsageError(
      cat(file.string(), " is not a graph backend of mlxcel"),
      cat("it has no function ",
          make ? "mlxcel_graph_has_gpu" : "mlxcel_make_graph_backend"),
      "set MLXCEL_GRAPH_LIBRARY to the library of this build");
}

const Library& library() {
  static std::mutex mutex;
  static std::map<fs::path, Library> opened;  // MLX cannot be unloaded
  fs::path file = find_library();
  std::lock_guard lock(mutex);
  auto entry = opened.find(file);
  if (entry == opened.end()) {
    entry = opened.emplace(file, load_library(file)).first;
  }
  return entry->second;
}

// Whether the system shows a GPU device at all.
bool gpu_device_present() {
#ifdef __APPLE__
  return true;
#else
  for (const char* device : {"/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"}) {
    std::error_code none;
    if (fs::exists(device, none)) {
      return true;
    }
  }
  return false;
#endif
}

}  // namespace

std::unique_ptr<Backend> make_graph_backend(const BackendOptions& options) {
  Backend* backend = nullptr;
  library().make(&options, &backend);
  return std::unique_ptr<Backend>(backend);
}

bool graph_backend_has_gpu() {
  if (!gpu_device_present()) {
    return false;
  }
  try {
    return library().has_gpu();
  } catch (const UsageError&) {
    return false;  // not installed: the CPU backend serves
  }
}

}  // namespace mlxcel
