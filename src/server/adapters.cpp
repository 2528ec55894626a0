#include "server/adapters.h"

#include "adapters/digest.h"
#include "core/error.h"
#include "server/body.h"

#include <algorithm>
#include <cmath>

namespace mlxcel::server {

using http::Failure;
using nlohmann::json;

Adapters::Adapters(
    const std::vector<LoadedAdapter>& loaded,
    std::string alias,
    bool start_at_zero)
    : alias_(std::move(alias)) {
  for (LoadedAdapter adapter : loaded) {
    auto taken = [&](const std::string& name) {
      return std::any_of(entries_.begin(), entries_.end(), [&](auto& entry) {
        return entry.adapter.task_name == name;
      });
    };
    // An adapter may stand in a stack twice: sql, sql-2, ...
    std::string name = adapter.task_name;
    for (int number = 2; taken(name); ++number) {
      name = cat(adapter.task_name, "-", number);
    }
    adapter.task_name = name;
    bool zero = start_at_zero && !adapter.fused;
    entries_.push_back({adapter, zero ? 0 : adapter.scale});
  }
}

json Adapters::list() const {
  std::lock_guard lock(mutex_);
  json out = json::array();
  for (size_t id = 0; id < entries_.size(); ++id) {
    const Entry& entry = entries_[id];
    if (entry.present) {
      out.push_back(
          {{"id", id},
           {"path", entry.adapter.path},
           {"scale", entry.scale},
           {"task_name", entry.adapter.task_name},
           {"prompt_prefix", ""}});
    }
  }
  return out;
}

// Scales by id from [{"id", "scale"}]; ids that are not listed get 0.
std::vector<float> Adapters::parse(
    const json& list, std::string_view where) const {
  if (!list.is_array()) {
    throw Failure::bad_request(
        where.empty() ? std::string("Request body must be an array")
                      : cat("'", where, "' must be an array of {id, scale}"),
        std::string(where));
  }
  std::string param(where);
  std::vector<float> scales(entries_.size(), 0.f);
  std::vector<bool> seen(entries_.size(), false);
  for (const json& entry : list) {
    if (!entry.is_object()) {
      throw Failure::bad_request(
          cat("an adapter is given as an object {id, scale}, not as ",
              kind_of(entry)),
          param);
    }
    Body body(entry);
    const json* id = body.find("id");
    const json* scale = body.find("scale");
    body.finish();
    if (id == nullptr || !id->is_number_integer()) {
      throw Failure::bad_request(
          "an adapter's \"id\" must be an integer", param);
    }
    if (scale == nullptr || !scale->is_number()) {
      throw Failure::bad_request(
          cat("the \"scale\" of adapter ", id->dump(), " must be a number"),
          param);
    }
    bool large = id->is_number_unsigned()
                     ? id->get<uint64_t>() >= entries_.size()
                     : true;
    if (large || !entries_[id->get<size_t>()].present) {
      throw Failure::bad_request(
          cat("there is no adapter with id ", id->dump()), param);
    }
    size_t index = id->get<size_t>();
    if (seen[index]) {
      throw Failure::bad_request(
          cat("adapter id ", index, " appears twice"), param);
    }
    float value = float(scale->get<double>());
    if (!std::isfinite(value)) {
      throw Failure::bad_request(
          cat("the scale of adapter ", index, " is not a finite number"),
          param);
    }
    seen[index] = true;
    scales[index] = value;
  }
  return scales;
}

// Fused adapters are part of the weights: their scales cannot change.
void Adapters::check_fused(
    const std::vector<float>& scales, const char* param) const {
  for (size_t id = 0; id < scales.size(); ++id) {
    const Entry& entry = entries_[id];
    if (entry.present && entry.adapter.fused && scales[id] != entry.scale) {
      throw Failure::bad_request(
          cat("adapter ",
              id,
              " (",
              entry.adapter.task_name,
              ") is fused into the weights at scale ",
              entry.scale,
              " and cannot be set to ",
              scales[id],
              "; start the server without --lora-fuse to change scales"),
          param);
    }
  }
}

void Adapters::set(const json& body) {
  std::lock_guard lock(mutex_);
  std::vector<float> scales = parse(body, "");
  check_fused(scales, "");
  for (size_t id = 0; id < scales.size(); ++id) {
    entries_[id].scale = scales[id];
  }
}

AdapterChoice Adapters::choice(const std::vector<float>& scales) const {
  AdapterChoice out;
  std::vector<ScaledDigest> set;
  bool any = false;
  out.scales.resize(scales.size(), 0.f);
  for (size_t id = 0; id < scales.size(); ++id) {
    const Entry& entry = entries_[id];
    if (scales[id] != 0 && entry.present) {
      out.names.push_back(entry.adapter.task_name);
    }
    if (scales[id] != 0 && !entry.adapter.fused) {
      out.scales[id] = scales[id];
      set.push_back({entry.adapter.digest, scales[id]});
      any = true;
    }
  }
  if (!any) {
    out.scales.clear();  // the base's own path
  }
  out.digest = effective_digest(set);
  return out;
}

AdapterChoice Adapters::current() const {
  std::lock_guard lock(mutex_);
  std::vector<float> scales;
  for (const Entry& entry : entries_) {
    scales.push_back(entry.scale);
  }
  return choice(scales);
}

AdapterChoice Adapters::chosen(const json& lora) const {
  std::lock_guard lock(mutex_);
  std::vector<float> scales = parse(lora, "lora");
  check_fused(scales, "lora");
  return choice(scales);
}

std::optional<AdapterChoice> Adapters::named(std::string_view model) const {
  std::lock_guard lock(mutex_);
  if (model.starts_with(alias_) && model.size() > alias_.size() &&
      model[alias_.size()] == ':') {
    model.remove_prefix(alias_.size() + 1);
  }
  for (size_t id = 0; id < entries_.size(); ++id) {
    if (!entries_[id].present || entries_[id].adapter.task_name != model) {
      continue;
    }
    std::vector<float> scales(entries_.size(), 0.f);
    scales[id] = entries_[id].adapter.scale;
    check_fused(scales, "model");  // others in the weights cannot be left out
    return choice(scales);
  }
  return std::nullopt;
}

std::vector<std::string> Adapters::model_names() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  auto in_weights = [](const Entry& entry) {
    return entry.present && entry.adapter.fused && entry.scale != 0;
  };
  auto fused = std::count_if(entries_.begin(), entries_.end(), in_weights);
  for (const Entry& entry : entries_) {
    // Alone, only where no other one is in the weights.
    if (entry.present && fused == (in_weights(entry) ? 1 : 0)) {
      names.push_back(cat(alias_, ":", entry.adapter.task_name));
    }
  }
  return names;
}

void Adapters::check_new_name(const std::string& name) const {
  constexpr size_t kLongestName = 256;  // bytes
  bool plain = std::ranges::none_of(
      name, [](unsigned char c) { return c < ' ' || c == 0x7f; });
  if (!plain || name.size() > kLongestName) {
    Body::refuse(
        "lora_name",
        plain ? cat("has ", name.size(), " bytes, more than ", kLongestName)
              : std::string("holds control characters"));
  }
  std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.present && entry.adapter.task_name == name) {
      throw Failure::bad_request(
          cat("the adapter '", name, "' is loaded already"), "lora_name");
    }
  }
}

int Adapters::add(const LoadedAdapter& adapter) {
  std::lock_guard lock(mutex_);
  entries_.push_back({adapter, 0});
  return int(entries_.size()) - 1;
}

void Adapters::remove(const std::string& name) {
  std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.present && entry.adapter.task_name == name) {
      if (entry.adapter.fused) {
        throw Failure::bad_request(
            cat("the adapter '", name, "' is fused into the weights"),
            "lora_name");
      }
      entry.present = false;
      entry.scale = 0;
      return;
    }
  }
  throw Failure(
      404, "not_found_error", cat("there is no adapter named '", name, "'"));
}

bool Adapters::any_fused() const {
  std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
    return entry.adapter.fused;
  });
}

std::vector<int> Adapters::removed() const {
  std::lock_guard lock(mutex_);
  std::vector<int> ids;
  for (size_t id = 0; id < entries_.size(); ++id) {
    if (!entries_[id].present) {
      ids.push_back(int(id));
    }
  }
  return ids;
}

}  // namespace mlxcel::server
