#include "adapters/folder.h"

#include "core/error.h"
#include "io/json.h"

#include <system_error>

namespace mlxcel {

namespace fs = std::filesystem;

void check_adapter_folder(const fs::path& folder, const char* fix) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw AdapterError(
        cat("cannot read adapter ", folder.string()),
        fs::exists(folder, ignored) ? "it is a file, and an adapter is a folder"
                                    : "there is no such folder",
        fix);
  }
}

std::string read_adapter_config_text(const fs::path& file, const char* fix) {
  // PEFT writes patterns for each module: some hundred kB at most.
  constexpr size_t kMost = size_t(4) << 20;
  std::string text, why;
  try {
    text = read_text_file(file, kMost);
    why = text.empty() ? "the file is empty" : "";
  } catch (const ConfigError& error) {
    why = error.why();
  }
  if (!why.empty()) {
    throw AdapterError(
        cat("cannot read adapter config ", file.string()), why, fix);
  }
  return text;
}

void refuse_dora(const std::string& says, const char* fix) {
  throw AdapterError(
      "DoRA adapters are not supported",
      cat(says,
          "; its low-rank pair without the magnitudes is neither the base "
          "model nor the fine-tune"),
      fix);
}

}  // namespace mlxcel
