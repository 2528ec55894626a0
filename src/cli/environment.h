// Settings from the environment.
#pragma once

#include <cstdlib>
#include <string>

namespace mlxcel::cli {

// Empty when unset: an empty variable counts as none.
inline std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace mlxcel::cli
