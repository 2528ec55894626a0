// The errors that mlxcel throws: what was wrong, why it matters, what to do.
// They are caught only at the edges: the command line, HTTP and workers.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

class Error : public std::runtime_error {
 public:
  // `what` names the thing that failed, `why` gives the facts (file, key, both
  // shapes), `fix` says what the user can do. `why` and `fix` may be empty.
  Error(std::string what, std::string why = {}, std::string fix = {});

  const std::string& summary() const {
    return summary_;
  }
  const std::string& why() const {
    return why_;
  }
  const std::string& fix() const {
    return fix_;
  }

 private:
  std::string summary_, why_, fix_;
};

// The command line or a setting is wrong: exit code 2.
struct UsageError : Error {
  using Error::Error;
};
struct ConfigError : Error {
  using Error::Error;
};
struct CheckpointError : Error {
  using Error::Error;
};
struct AdapterError : Error {
  using Error::Error;
};
struct SurgeryError : Error {
  using Error::Error;
};
struct ShapeError : Error {
  using Error::Error;
};
struct TextError : Error {
  using Error::Error;
};

// Concatenates anything fmt can format.
template <typename... Args>
std::string cat(const Args&... args) {
  std::string out;
  (fmt::format_to(std::back_inserter(out), "{}", args), ...);
  return out;
}

// The known names closest to `name` by edit distance, best first.
std::vector<std::string> nearest_names(
    std::string_view name,
    const std::vector<std::string>& known,
    size_t limit = 3);

// "did you mean a, b or c?", or "" when nothing is near.
std::string did_you_mean(
    std::string_view name, const std::vector<std::string>& known);

}  // namespace mlxcel
