#include "text/yaml.h"

#include "core/error.h"
#include "textkit.h"

namespace mlxcel {

namespace {

void append(void* user, const void* data, size_t size) {
  static_cast<std::string*>(user)->append(static_cast<const char*>(data), size);
}

}  // namespace

std::string YamlDocument::place(std::string pointer) const {
  while (true) {
    auto found = positions.find(pointer);
    if (found != positions.end()) {
      return cat(
          "line ",
          found->at(0).get<int64_t>(),
          ", column ",
          found->at(1).get<int64_t>());
    }
    size_t slash = pointer.rfind('/');
    if (slash == std::string::npos) {
      return {};
    }
    pointer.resize(slash);
  }
}

YamlDocument parse_yaml(std::string_view text, const std::string& file) {
  std::string result;
  int code = tk_yaml_to_json(text.data(), text.size(), append, &result);
  if (code != TK_OK) {
    // Advice of the parser to programmers.
    constexpr std::string_view kAside =
        ", set DuplicateKeyPolicy in Options if acceptable";
    if (size_t at = result.find(kAside); at != std::string::npos) {
      result.erase(at, kAside.size());
    }
    throw TextError(
        cat("cannot read ", file),
        cat("it is not valid YAML: ", result),
        "correct the file at the place named");
  }
  nlohmann::json parsed = nlohmann::json::parse(result);
  return {
      std::move(parsed["value"]),
      std::move(parsed["positions"]),
      std::move(parsed["not_finite"])};
}

}  // namespace mlxcel
