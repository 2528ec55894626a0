#include "cli/tensor_places.h"

#include "core/error.h"
#include "loading/detect.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace mlxcel::cli {

namespace {

// Numbers between dots become {}.
std::string without_numbers(std::string_view name) {
  std::string out;
  size_t at = 0;
  while (at <= name.size()) {
    size_t dot = std::min(name.find('.', at), name.size());
    std::string_view part = name.substr(at, dot - at);
    bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) {
          return c >= '0' && c <= '9';
        });
    out += at > 0 ? "." : "";
    out += number ? "{}" : std::string(part);
    at = dot + 1;
  }
  return out;
}

std::string role_of(
    const Family& family, const NameMap& names, const std::string& key) {
  std::vector<RolePart> parts = names.parts_of(split_key(key).first);
  if (parts.empty()) {
    parts = names.parts_of(key);
  }
  std::string out;
  for (const RolePart& part : parts) {
    std::string role = without_numbers(part.role.name);
    if (out.find(role) == std::string::npos) {
      out += cat(out.empty() ? "" : " + ", role);
    }
  }
  if (!out.empty()) {
    return out;
  }
  return is_dropped(family, key, names.spec().blocks.size())
             ? "dropped"
             : "no place: loading will refuse";
}

}  // namespace

std::vector<TensorPlace> tensor_places(
    const Family& family,
    const NameMap& names,
    const Config& config,
    const WeightMap& weights) {
  WeightMap used = weights;
  drop_unused_tower(config, used);
  std::map<std::pair<std::string, std::string>, int> counts;
  for (const auto& [key, tensor] : weights) {
    std::string role = used.contains(key) ? role_of(family, names, key)
                                          : "dropped: text model alone";
    ++counts[{without_numbers(key), role}];
  }
  std::vector<TensorPlace> out;
  for (const auto& [place, count] : counts) {
    out.push_back({place.first, place.second, count});
  }
  return out;
}

}  // namespace mlxcel::cli
