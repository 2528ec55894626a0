// PEFT's adapter_config.json, as far as it says how low-rank pairs act.
// https://huggingface.co/docs/peft/package_reference/lora
#pragma once

#include <cstdint>
#include <filesystem>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace mlxcel {

class PeftConfig {
 public:
  // Throws AdapterError that names the file and the field.
  static PeftConfig read(const std::filesystem::path& file);
  static PeftConfig parse(const std::string& text, const std::string& file);

  // The rank that the config gives the module, and the factor on its B A.
  int64_t rank_of(const std::string& module) const;
  double factor_of(const std::string& module) const;

  const std::string& base_model() const {
    return base_model_;
  }
  const std::vector<std::string>& target_modules() const {
    return target_modules_;
  }

 private:
  // Values by module, in the config's order: the first pattern that matches the
  // end of the module's path counts.
  struct Pattern {
    std::regex module;
    double value;
  };
  using Patterns = std::vector<Pattern>;
  static const Pattern* match(
      const Patterns& patterns, const std::string& module);

  int64_t rank_ = 8;
  double alpha_ = 8;
  bool rank_stabilized_ = false;  // use_rslora
  Patterns ranks_, alphas_;
  std::string base_model_;
  std::vector<std::string> target_modules_;

  friend class PeftConfigReader;
};

}  // namespace mlxcel
