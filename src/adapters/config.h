// adapter_config.json: which kind of fine-tune a folder holds and at what scale
// its low-rank terms are added.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace mlxcel {

struct AdapterConfig {
  int64_t rank = 8;
  std::optional<double> alpha;  // lora_alpha
  double scale = 20;            // used when alpha is absent
  std::string task_name;        // free metadata; "" when absent

  // The factor on B A: alpha / rank when alpha is given, else scale.
  double factor() const;
};

// Reads and checks `folder`/adapter_config.json. Throws AdapterError that names
// the file and the field: not JSON, not an object, a field of the wrong type or
// not finite, a rank below 1, a fine_tune_type other than "lora", or a file in
// PEFT's form.
AdapterConfig read_adapter_config(const std::filesystem::path& folder);

// The same from the file's text; `file` is for messages.
AdapterConfig parse_adapter_config(
    const std::string& text, const std::string& file);

}  // namespace mlxcel
