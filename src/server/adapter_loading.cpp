#include "server/adapter_loading.h"

#include "adapters/adapter.h"
#include "core/error.h"
#include "core/log.h"
#include "http/failure.h"

#include <algorithm>
#include <future>
#include <map>
#include <string_view>

namespace mlxcel::server {

namespace fs = std::filesystem;
using http::Failure;

namespace {

bool has_control_characters(std::string_view text) {
  return std::ranges::any_of(
      text, [](unsigned char c) { return c < ' ' || c == 0x7f; });
}

}  // namespace

void check_task_names(const std::vector<AdapterRequest>& adapters) {
  std::map<std::string, fs::path> folders;
  for (const AdapterRequest& adapter : adapters) {
    std::string name = adapter.read->task_name();
    if (has_control_characters(name)) {
      throw AdapterError(
          cat("the task_name of ",
              adapter.folder.string(),
              " holds control characters"),
          "requests name adapters by it",
          "change task_name in its adapter_config.json");
    }
    fs::path folder = fs::weakly_canonical(adapter.folder);
    auto [known, fresh] = folders.try_emplace(name, folder);
    if (!fresh && known->second != folder) {
      throw AdapterError(
          cat("two adapters have the task_name '", name, "'"),
          cat(known->second.string(),
              " and ",
              folder.string(),
              " could not be told apart by requests"),
          "change task_name in one adapter_config.json, or load one of them");
    }
  }
}

AdapterLoading::AdapterLoading(
    LoadOptions options,
    fs::path folder,
    std::shared_ptr<LoadedModel> model,
    Adapters& adapters,
    Service& service)
    : options_(std::move(options)),
      folder_(fs::canonical(folder)),
      model_(std::move(model)),
      adapters_(adapters),
      service_(service) {
  options_.progress = nullptr;
}

// The path inside the folder that adapters may come from.
fs::path AdapterLoading::allowed(const std::string& path) const {
  if (has_control_characters(path)) {
    throw Failure::bad_request(
        "'lora_path' holds control characters", "lora_path");
  }
  fs::path asked(path);
  std::error_code error;
  fs::path real =
      fs::canonical(asked.is_absolute() ? asked : folder_ / asked, error);
  auto [end, unused] =
      std::mismatch(folder_.begin(), folder_.end(), real.begin(), real.end());
  bool inside = !error && end == folder_.end();
  if (!inside) {
    throw Failure::bad_request(
        cat("'", path, "' is no folder inside the one of --lora-dir"),
        "lora_path");
  }
  return real;
}

void AdapterLoading::load(const std::string& name, const std::string& path) {
  std::lock_guard lock(mutex_);
  adapters_.check_new_name(name);
  LoadOptions options = options_;
  AdapterRequest request;
  request.folder = allowed(path);
  request.fuse = false;
  request.read = std::make_shared<Adapter>(read_adapter(request.folder));
  // Those that were unloaded leave memory, once nothing uses them.
  for (int id : service_.retire_adapters(adapters_.removed())) {
    options.adapters[size_t(id)] = AdapterRequest{.fuse = false};
  }
  options.adapters.push_back(request);
  auto model = std::make_shared<LoadedModel>(load_model(options));

  // Between two steps: from here on requests may name the adapter.
  LoadedAdapter adapter = model->adapters.back();
  adapter.task_name = name;
  service_.ask([&](Engine& engine) {
    adapters_.add(adapter);
    engine.set_model(*model->model, *model->backend);
  });
  model_ = std::move(model);
  options_ = std::move(options);
  log_info(cat("adapter ", name, " loaded from ", request.folder.string()));
}

void AdapterLoading::unload(const std::string& name) {
  std::lock_guard lock(mutex_);
  adapters_.remove(name);
  log_info(cat("adapter ", name, " unloaded"));
}

}  // namespace mlxcel::server
