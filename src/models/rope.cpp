#include "models/rope.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

namespace mlxcel {

namespace {

// The settings of one table, from whichever form the config uses.
struct Settings {
  Config scaling;    // rope_scaling or rope_parameters; may be empty
  std::string type;  // "default", "linear", ...
  double theta = 0;
  double partial = 1;  // share of the head's features that turn
  std::optional<int64_t> original_positions;
};

[[noreturn]] void refuse(
    const Config& config, std::string why, std::string fix) {
  throw ConfigError(
      cat(config.file(), ": the rotary embedding cannot be built"),
      std::move(why),
      std::move(fix));
}

// rope_parameters is nested when it holds an object for each layer type.
Config scaling_section(const Config& config, std::string_view layer_type) {
  std::optional<Config> parameters = config.find_sub("rope_parameters");
  std::optional<Config> scaling = config.find_sub("rope_scaling");
  if (parameters && scaling && parameters->json() != scaling->json()) {
    refuse(
        config,
        "rope_scaling and rope_parameters are both given and differ",
        "keep the one that the model was trained with");
  }
  Config section = parameters ? *parameters
                   : scaling  ? *scaling
                              : Config(nlohmann::json::object(), config.file());
  bool nested = std::any_of(
      section.json().begin(), section.json().end(), [](const auto& value) {
        return value.is_object();
      });
  return nested ? section.sub(layer_type) : section;
}

Settings read_settings(const Config& config, const RopeDefaults& defaults) {
  Settings out;
  out.scaling = scaling_section(config, defaults.layer_type);
  // "type" is the older name of "rope_type".
  out.type = out.scaling.get_or<std::string>(
      "rope_type", out.scaling.get_or<std::string>("type", "default"));
  // Early configs call longrope "su" or, with the same two factor lists,
  // "yarn".
  // The axes of mrope are equal for text.
  if (out.type == "mrope") {
    out.type = "default";
  }
  if (out.type == "su" ||
      (out.type == "yarn" && out.scaling.has("short_factor"))) {
    out.type = "longrope";
  }
  out.theta = out.scaling.get_or(
      "rope_theta", config.get_or("rope_theta", defaults.theta));
  // A null turns whole heads; a missing key is the family's default.
  constexpr const char* kPartial = "partial_rotary_factor";
  double outer = config.json().contains(kPartial) ? 1 : defaults.partial;
  out.partial = out.scaling.get_or(kPartial, config.get_or(kPartial, outer));
  // transformers gives the outer key priority (Phi-3 writes it there), and
  // takes the whole context when neither is present.
  constexpr std::string_view original = "original_max_position_embeddings";
  out.original_positions = config.find<int64_t>(original);
  if (!out.original_positions) {
    out.original_positions = out.scaling.find<int64_t>(original);
  }
  if (!out.original_positions) {
    out.original_positions = config.find<int64_t>("max_position_embeddings");
  }
  return out;
}

double positive(const Config& section, std::string_view key, double value) {
  if (!(value > 0) || !std::isfinite(value)) {
    refuse(
        section,
        cat(key, " is ", value, ", expected a positive number"),
        "correct the value in the file");
  }
  return value;
}

int64_t original_positions(const Config& config, const Settings& settings) {
  if (!settings.original_positions || *settings.original_positions <= 0) {
    refuse(
        config,
        cat("rope type ",
            settings.type,
            " needs original_max_position_embeddings, the context length "
            "before scaling"),
        "take config.json from the model's original publisher");
  }
  return *settings.original_positions;
}

// The stated factor, else how many times the context was lengthened.
double scaling_factor(const Config& config, const Settings& settings) {
  double factor = settings.scaling.get_or("factor", 0.0);
  if (factor == 0) {
    factor = double(config.get<int64_t>("max_position_embeddings")) /
             double(original_positions(config, settings));
  }
  return positive(settings.scaling, "factor", factor);
}

// theta^(-2i/dims): Su et al. 2021, "RoFormer", section 3.2.2.
std::vector<double> plain_frequencies(double theta, int dims) {
  std::vector<double> out(size_t(dims) / 2);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = std::pow(theta, -2.0 * double(i) / dims);
  }
  return out;
}

// Llama 3.1's reference code: wavelengths beyond the original context are
// stretched by `factor`, short ones stay, a ramp in between.
void scale_llama3(
    const Config& config,
    const Settings& settings,
    std::vector<double>& frequencies) {
  double factor = settings.scaling.get<double>("factor");
  double low = settings.scaling.get<double>("low_freq_factor");
  double high = settings.scaling.get<double>("high_freq_factor");
  double context = double(original_positions(config, settings));
  positive(settings.scaling, "factor", factor);
  if (!(low > 0) || !(high > low)) {
    refuse(
        settings.scaling,
        cat("low_freq_factor is ", low, " and high_freq_factor ", high),
        "they must be positive, the second one larger");
  }
  for (double& frequency : frequencies) {
    double turns = context * frequency / (2 * std::numbers::pi);
    double keep = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    frequency = frequency * (keep + (1 - keep) / factor);
  }
}

// Peng et al. 2023, "YaRN", sections 3.2 and 3.4: dimensions that turn often
// keep their frequency, slow ones are interpolated.
void scale_yarn(
    const Config& config,
    const Settings& settings,
    int dims,
    std::vector<double>& frequencies,
    float& attention_scale) {
  const Config& scaling = settings.scaling;
  double factor = scaling_factor(config, settings);
  double context = double(original_positions(config, settings));
  // 32 and 1: the paper's values for Llama. 0 means not stated.
  double beta_fast = scaling.get_or("beta_fast", 0.0);
  double beta_slow = scaling.get_or("beta_slow", 0.0);
  beta_fast = positive(scaling, "beta_fast", beta_fast == 0 ? 32 : beta_fast);
  beta_slow = positive(scaling, "beta_slow", beta_slow == 0 ? 1 : beta_slow);
  auto dimension_of = [&](double turns) {
    return dims * std::log(context / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(settings.theta));
  };
  double low = dimension_of(beta_fast);
  double high = dimension_of(beta_slow);
  if (scaling.get_or("truncate", true)) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, double(dims - 1));
  if (low == high) {
    high += 0.001;  // a ramp needs a width; transformers uses the same one
  }
  for (size_t i = 0; i < frequencies.size(); ++i) {
    double ramp = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= (1 - ramp) + ramp / factor;
  }

  auto mscale_of = [&](double mscale) {
    return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
  };
  double mscale = scaling.get_or("mscale", 0.0);
  double all_dim = scaling.get_or("mscale_all_dim", 0.0);
  double inferred = mscale != 0 && all_dim != 0
                        ? mscale_of(mscale) / mscale_of(all_dim)
                        : mscale_of(1);
  attention_scale = float(scaling.get_or("attention_factor", inferred));
}

// Gemma 4: the frequencies of the whole head, of which a share turns and the
// rest stands still.
void scale_proportional(
    const Settings& settings, std::vector<double>& frequencies) {
  double factor = settings.scaling.get_or("factor", 1.0);
  positive(settings.scaling, "factor", factor);
  size_t turning = size_t(double(frequencies.size()) * settings.partial);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = i < turning ? frequencies[i] / factor : 0;
  }
}

std::vector<float> divided(
    const Settings& settings,
    const std::vector<double>& frequencies,
    std::string_view key) {
  auto factors = settings.scaling.get<std::vector<double>>(key);
  if (factors.size() != frequencies.size()) {
    refuse(
        settings.scaling,
        cat(key,
            " has ",
            factors.size(),
            " entries, the rotated dimensions need ",
            frequencies.size()),
        "take config.json from the model's original publisher");
  }
  std::vector<float> out(factors.size());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] =
        float(frequencies[i] / positive(settings.scaling, key, factors[i]));
  }
  return out;
}

// Ding et al. 2024, "LongRoPE": one factor a dimension, another set past the
// original context; the attention scale as in Phi-3's published code.
void fill_longrope(
    const Config& config,
    const Settings& settings,
    const std::vector<double>& frequencies,
    RopeTable& table) {
  double context = double(original_positions(config, settings));
  double factor = scaling_factor(config, settings);
  double inferred =
      factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(context));
  double scale = settings.scaling.get_or("attention_factor", inferred);
  // Phi-3.5-MoE states one scale for each set.
  table.scale = float(settings.scaling.get_or("short_mscale", scale));
  table.long_scale = float(settings.scaling.get_or("long_mscale", scale));
  table.inv_freq = divided(settings, frequencies, "short_factor");
  table.long_inv_freq = divided(settings, frequencies, "long_factor");
  table.switch_length = original_positions(config, settings);
}

void turn(std::vector<double>& frequencies, const RopeDefaults& defaults) {
  for (double& frequency : frequencies) {
    frequency *= defaults.backwards ? -1 : 1;
  }
}

// Extreme settings leave the range of f32, and every product would be NaN.
void check_finite(const Config& config, const RopeTable& table) {
  auto finite = [](const std::vector<float>& values) {
    return std::all_of(values.begin(), values.end(), [](float value) {
      return std::isfinite(value);
    });
  };
  if (!finite(table.inv_freq) || !finite(table.long_inv_freq) ||
      !std::isfinite(table.scale) || !std::isfinite(table.long_scale)) {
    refuse(
        config,
        "its frequencies or its scale are not finite numbers",
        "correct rope_theta and the scaling factors in the file");
  }
}

}  // namespace

std::shared_ptr<const RopeTable> rope_table(
    const Config& config, int head_dim, const RopeDefaults& defaults) {
  Settings settings = read_settings(config, defaults);
  positive(config, "rope_theta", settings.theta);
  auto table = std::make_shared<RopeTable>();
  table->interleaved = config.get_or("rope_traditional", defaults.interleaved);
  // A share above 1 may not fit an int.
  bool share = settings.partial > 0 && settings.partial <= 1;
  bool proportional = settings.type == "proportional";
  table->dims = proportional ? head_dim
                : share      ? int(head_dim * settings.partial)
                             : 0;
  if (table->dims <= 0 || table->dims > head_dim || table->dims % 2 != 0) {
    refuse(
        config,
        cat("partial_rotary_factor ",
            settings.partial,
            " of head_dim ",
            head_dim,
            " rotates ",
            table->dims,
            " dimensions"),
        "it must leave an even number of at most head_dim");
  }

  // Hunyuan names its base "dynamic" and fixes it by alpha.
  double alpha = settings.scaling.get_or("alpha", 0.0);
  if (settings.type == "dynamic" && alpha > 0 && table->dims > 2) {
    settings.theta *=
        std::pow(alpha, double(table->dims) / double(table->dims - 2));
  }
  std::vector<double> frequencies =
      plain_frequencies(settings.theta, table->dims);
  if (settings.type == "longrope") {
    turn(frequencies, defaults);
    fill_longrope(config, settings, frequencies, *table);
    check_finite(config, *table);
    return table;
  }
  if (settings.type == "linear") {
    double factor = settings.scaling.get<double>("factor");
    positive(settings.scaling, "factor", factor);
    for (double& frequency : frequencies) {
      frequency /= factor;
    }
  } else if (settings.type == "llama3") {
    scale_llama3(config, settings, frequencies);
  } else if (settings.type == "yarn") {
    scale_yarn(config, settings, table->dims, frequencies, table->scale);
  } else if (proportional && share) {
    scale_proportional(settings, frequencies);
  } else if (settings.type == "dynamic" && alpha > 0) {
    // A fixed base in the place of Hunyuan's growing one, in frequencies
    // already.
  } else if (settings.type == "dynamic") {
    // The base grows only past max_position_embeddings, where our context ends.
  } else if (settings.type != "default") {
    refuse(
        config,
        cat("rope type ", settings.type, " is not supported"),
        "supported: default, linear, dynamic, llama3, yarn, longrope, "
        "proportional");
  }
  turn(frequencies, defaults);
  table->inv_freq.assign(frequencies.begin(), frequencies.end());
  check_finite(config, *table);
  return table;
}

}  // namespace mlxcel
