#include "adapters/peft_config.h"

#include "adapters/folder.h"
#include "core/error.h"
#include "io/ordered_json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace mlxcel {

namespace {

// Ordered: of several patterns that match a module, the first one counts.
using Json = nlohmann::ordered_json;

// Long names would let a pattern run deep into the matcher's recursion.
constexpr size_t kLongestName = 512;
constexpr size_t kLongestPattern = 256;
constexpr size_t kMostPatterns = 4096;

// Patterns come from outside: where the library has a matcher that takes no
// exponential time, it is used (it knows no back-references).
constexpr std::regex::flag_type kSyntax =
#ifdef __GLIBCXX__
    std::regex::ECMAScript | std::regex_constants::__polynomial;
#else
    std::regex::ECMAScript;
#endif

}  // namespace

class PeftConfigReader {
 public:
  PeftConfigReader(const Json& root, const std::string& file)
      : root_(root), file_(file) {}

  PeftConfig read() {
    check_kind();
    check_switches();
    PeftConfig config;
    config.rank_ = int64_t(number("r", 8, true));
    config.alpha_ = number("lora_alpha", 8, false);
    config.rank_stabilized_ = flag("use_rslora");
    config.ranks_ = patterns("rank_pattern", true);
    config.alphas_ = patterns("alpha_pattern", false);
    if (const Json* base = find("base_model_name_or_path");
        base && base->is_string()) {
      config.base_model_ = base->get<std::string>();
    }
    if (const Json* modules = find("target_modules");
        modules && modules->is_array()) {
      for (const Json& module : *modules) {
        if (module.is_string()) {
          config.target_modules_.push_back(module.get<std::string>());
        }
      }
      std::sort(config.target_modules_.begin(), config.target_modules_.end());
    }
    return config;
  }

 private:
  const Json* find(const char* key) const {
    auto found = root_.find(key);
    return found == root_.end() || found->is_null() ? nullptr : &*found;
  }

  [[noreturn]] void refuse(
      const std::string& what, const std::string& why) const {
    throw AdapterError(
        cat("cannot convert ", file_, ": ", what), why, kMergeWithPeft);
  }

  [[noreturn]] void bad_value(
      const std::string& key, const Json& value, const char* needed) const {
    throw AdapterError(
        cat("adapter config ", file_, " has an unusable value"),
        cat(key,
            " is ",
            value.dump(-1, ' ', false, Json::error_handler_t::replace),
            ", and ",
            needed,
            " is needed"),
        "correct it, or save the adapter with PEFT again");
  }

  bool flag(const char* key) const {
    const Json* value = find(key);
    if (value && !value->is_boolean()) {
      bad_value(key, *value, "true or false");
    }
    return value && value->get<bool>();
  }

  double check_number(
      const std::string& key, const Json& value, bool rank) const {
    double number = value.is_number() ? value.get<double>() : NAN;
    if (!std::isfinite(number)) {
      bad_value(key, value, "a finite number");
    }
    // The upper bound only keeps the conversion defined.
    if (rank && (number < 1 || number > 1e9 || number != std::floor(number))) {
      bad_value(key, value, "a whole number of at least 1");
    }
    return number;
  }

  double number(const char* key, double absent, bool rank) const {
    const Json* value = find(key);
    return value ? check_number(key, *value, rank) : absent;
  }

  PeftConfig::Patterns patterns(const char* key, bool rank) const {
    PeftConfig::Patterns out;
    const Json* object = find(key);
    if (!object) {
      return out;
    }
    if (!object->is_object()) {
      bad_value(key, *object, "an object");
    }
    if (object->size() > kMostPatterns) {
      throw AdapterError(
          cat("adapter config ", file_, " has an unusable value"),
          cat(key, " has ", object->size(), " entries"),
          cat("at most ", kMostPatterns, " are read"));
    }
    for (const auto& [pattern, value] : object->items()) {
      std::string name = cat(key, "[\"", pattern, "\"]");
      double number = check_number(name, value, rank);
      if (pattern.size() > kLongestPattern) {
        bad_value(name, value, "a shorter name");
      }
      try {
        out.push_back(
            {std::regex(cat("(.*\\.)?(", pattern, ")$"), kSyntax), number});
      } catch (const std::regex_error& error) {
        throw AdapterError(
            cat("adapter config ", file_, " has an unusable value"),
            cat("the name of ",
                name,
                " is no regular expression: ",
                error.what()),
            "write the module's name, or a pattern for the end of its path");
      }
    }
    return out;
  }

  void check_kind() const {
    const Json* type = find("peft_type");
    if (!type) {
      throw AdapterError(
          cat("cannot convert ", file_),
          "it has no peft_type, so it is not PEFT's",
          "an adapter that mlx-lm saved needs no conversion: give its folder "
          "to --adapter or --lora");
    }
    if (!type->is_string() || type->get<std::string>() != "LORA") {
      refuse(
          cat("peft_type ", type->dump(), " is not supported"),
          "only LORA is a sum of low-rank pairs");
    }
  }

  // Switches under which the saved pairs alone are not what was trained.
  void check_switches() const {
    if (flag("use_dora")) {
      refuse_dora(cat(file_, " has use_dora"), kMergeWithPeft);
    }
    if (const Json* bias = find("bias"); bias && *bias != "none") {
      refuse(
          cat("bias is ", bias->dump()),
          "trained biases are no low-rank pairs");
    }
    struct Switch {
      const char* key;
      const char* why;
    };
    constexpr Switch kSwitches[] = {
        {"modules_to_save",
         "it holds whole modules that take the place of the base model's"},
        {"layer_replication",
         "the model it was trained on has other layers than its base"},
        {"trainable_token_indices",
         "it holds whole rows of the token embedding"},
        {"target_parameters", "it acts on parameters that are no layer"},
        {"alora_invocation_tokens",
         "it acts only from a token sequence onwards"},
        {"lora_bias", "it has a bias beside the low-rank pair"},
        {"fan_in_fan_out", "its base layers store their weights transposed"},
        {"use_qalora", "its lora_A reads averaged inputs"},
        {"use_bdlora", "its factors are block-diagonal"},
        {"arrow_config", "it chooses among several adapters by token"},
        {"ensure_weight_tying", "it acts on a tied embedding and head at once"},
        {"kasa_config", "its base weights were changed before the training"},
        {"lora_ga_config", "its base weights were changed before the training"},
        {"monteclora_config", "its factors are drawn at random at each use"},
    };
    for (const auto& [key, why] : kSwitches) {
      const Json* value = find(key);
      bool off = !value || *value == false || value->empty();
      if (!off) {
        refuse(cat(key, " is set"), why);
      }
    }
    // PiSSA, OLoRA and the like take their start out of the base weights.
    if (const Json* start = find("init_lora_weights");
        start && start->is_string()) {
      std::string name = start->get<std::string>();
      if (name != "gaussian" && name != "eva" && name != "orthogonal") {
        refuse(
            cat("init_lora_weights is \"", name, "\""),
            "its pairs belong to base weights that were changed before the "
            "training");
      }
    }
  }

  const Json& root_;
  const std::string& file_;
};

PeftConfig PeftConfig::parse(const std::string& text, const std::string& file) {
  Json root;
  try {
    root = parse_ordered_json(text, file);
  } catch (const ConfigError& error) {
    throw AdapterError(
        cat("cannot read adapter config ", file),
        error.why(),
        "save the adapter with PEFT again");
  }
  if (!root.is_object()) {
    throw AdapterError(
        cat("cannot read adapter config ", file),
        cat("its top level is a JSON ", root.type_name(), ", not an object"),
        "save the adapter with PEFT again");
  }
  return PeftConfigReader(root, file).read();
}

PeftConfig PeftConfig::read(const std::filesystem::path& file) {
  return parse(
      read_adapter_config_text(
          file, "give the folder that PEFT's save_pretrained wrote"),
      file.string());
}

const PeftConfig::Pattern* PeftConfig::match(
    const Patterns& patterns, const std::string& module) {
  if (module.size() > kLongestName) {
    return nullptr;
  }
  for (const Pattern& pattern : patterns) {
    if (std::regex_match(module, pattern.module)) {
      return &pattern;
    }
  }
  return nullptr;
}

int64_t PeftConfig::rank_of(const std::string& module) const {
  const Pattern* own = match(ranks_, module);
  return own ? int64_t(own->value) : rank_;
}

double PeftConfig::factor_of(const std::string& module) const {
  const Pattern* own = match(alphas_, module);
  double alpha = own ? own->value : alpha_;
  double rank = double(rank_of(module));
  return alpha / (rank_stabilized_ ? std::sqrt(rank) : rank);
}

}  // namespace mlxcel
