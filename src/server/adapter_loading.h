// Loads and forgets adapters while the server runs. The model is built anew
// beside the running one, from the same mapped weights, and takes its place
// between two steps; requests under way keep the adapters they began with.
#pragma once

#include "loading/pipeline.h"
#include "server/adapters.h"
#include "server/service.h"

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace mlxcel::server {

// Throws AdapterError for a task_name that holds control characters or that two
// folders share; the same folder may be given twice. All have been read.
void check_task_names(const std::vector<AdapterRequest>& adapters);

class AdapterLoading {
 public:
  // `options` are those that the model was loaded with, each adapter with its
  // content. All references outlive the object.
  AdapterLoading(
      LoadOptions options,
      std::filesystem::path folder,
      std::shared_ptr<LoadedModel> model,
      Adapters& adapters,
      Service& service);

  // Blocks until the adapter can be used. Throws Failure or AdapterError;
  // nothing has changed then.
  void load(const std::string& name, const std::string& path);
  void unload(const std::string& name);

 private:
  std::filesystem::path allowed(const std::string& path) const;

  std::mutex mutex_;  // one change at a time
  LoadOptions options_;
  std::filesystem::path folder_;
  std::shared_ptr<LoadedModel> model_;  // the one in use
  Adapters& adapters_;
  Service& service_;
};

}  // namespace mlxcel::server
