// The adapters of a running server: which there are, their scales for requests
// without a wish of their own, and what a request chooses.
#pragma once

#include "loading/pipeline.h"

#include <nlohmann/json.hpp>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel::server {

// What one request runs under, fixed when it arrives.
struct AdapterChoice {
  std::vector<float> scales;       // by id; empty: the base
  std::string digest;              // keys what the prefix cache holds
  std::vector<std::string> names;  // of those in force, for metrics
};

class Adapters {
 public:
  // `start_at_zero`: none is in force until somebody sets its scale.
  Adapters(
      const std::vector<LoadedAdapter>& loaded,
      std::string alias,
      bool start_at_zero);

  // GET: [{"id", "path", "scale", "task_name", "prompt_prefix"}]
  nlohmann::json list() const;
  // POST: [{"id", "scale"}]; those not listed go to 0. Throws Failure and
  // changes nothing when an id is unknown or repeated, or the scales of fused
  // adapters would change.
  void set(const nlohmann::json& body);

  AdapterChoice current() const;
  // The `lora` field of a request.
  AdapterChoice chosen(const nlohmann::json& lora) const;
  // "<alias>:<task_name>" or "<task_name>"; nothing for other names.
  std::optional<AdapterChoice> named(std::string_view model) const;
  std::vector<std::string> model_names() const;

  // At run time. The id of the new adapter, which is at scale 0 for requests
  // that do not name it. Throws Failure when the name is taken.
  int add(const LoadedAdapter& adapter);
  void check_new_name(const std::string& name) const;
  // Throws Failure when there is none of that name. Its id is never used again.
  void remove(const std::string& name);
  bool any_fused() const;
  // Ids that were removed.
  std::vector<int> removed() const;

 private:
  struct Entry {
    LoadedAdapter adapter;
    float scale = 0;      // for requests without a wish
    bool present = true;  // else it was unloaded
  };
  std::vector<float> parse(
      const nlohmann::json& list, std::string_view where) const;
  // Throws Failure for `param` when a fused adapter's scale is another one.
  void check_fused(const std::vector<float>& scales, const char* param) const;
  AdapterChoice choice(const std::vector<float>& scales) const;

  mutable std::mutex mutex_;
  std::string alias_;
  std::vector<Entry> entries_;  // by id
};

}  // namespace mlxcel::server
