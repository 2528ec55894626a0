#include "loading/detect.h"

#include "io/json.h"
#include "models/registry.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

namespace mlxcel {

namespace fs = std::filesystem;

namespace {

struct KindRow {
  std::string_view model_type;
  ModelKind kind;
};

// Model types that generate no text, whatever their architecture says: encoders
// (as their sentence-transformers checkpoints are published), speech,
// detection.
constexpr std::array<KindRow, 22> kOtherKinds = {{
    {"bert", ModelKind::embedding},
    {"roberta", ModelKind::embedding},
    {"xlm-roberta", ModelKind::embedding},
    {"modernbert", ModelKind::embedding},
    {"distilbert", ModelKind::embedding},
    {"mpnet", ModelKind::embedding},
    {"nomic_bert", ModelKind::embedding},
    {"new", ModelKind::embedding},
    {"deberta-v2", ModelKind::embedding},
    {"electra", ModelKind::embedding},
    {"embedding_gemma2", ModelKind::embedding},
    {"colidefics3", ModelKind::embedding},
    {"colqwen2_5", ModelKind::embedding},
    {"siglip", ModelKind::embedding},
    {"clip", ModelKind::embedding},
    {"whisper", ModelKind::audio},
    {"kokoro", ModelKind::audio},
    {"nemotron_voicechat", ModelKind::audio},
    {"rt_detr_v2", ModelKind::detection},
    {"rt_detr", ModelKind::detection},
    {"yolo26", ModelKind::detection},
    {"detr", ModelKind::detection},
}};

// Architectures of checkpoints trained to embed.
constexpr std::array<std::string_view, 4> kEmbeddingArchitectures = {
    "Gemma3TextModel", "EmbeddingGemma2Model", "ColIdefics3", "ColQwen2_5"};

std::vector<std::string> architectures_of(const Config& config) {
  return config.get_or("architectures", std::vector<std::string>{});
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    out += (out.empty() ? "" : ", ") + name;
  }
  return out;
}

// The pooling module that makes a decoder a sentence-transformers model.
std::optional<std::string> pooling_module(const fs::path& folder) {
  fs::path path = folder / "modules.json";
  if (!fs::exists(path)) {
    return std::nullopt;
  }
  nlohmann::json modules = read_json_file(path);
  for (const auto& module : modules) {
    if (module.is_object() && module.contains("type") &&
        module["type"].is_string() &&
        module["type"].get_ref<const std::string&>().ends_with(".Pooling")) {
      return cat("modules.json names ", module["type"].get<std::string>());
    }
  }
  return std::nullopt;
}

// Sets kind and evidence; generation is what is left.
void detect_kind(
    const fs::path& folder, const Config& config, Detection& detection) {
  auto decide = [&](ModelKind kind, std::string evidence) {
    detection.kind = kind;
    detection.evidence = std::move(evidence);
  };
  for (const std::string& name : architectures_of(config)) {
    if (name.ends_with("ForSequenceClassification")) {
      return decide(ModelKind::reranker, cat("architectures has ", name));
    }
  }
  for (const KindRow& row : kOtherKinds) {
    if (detection.model_type == row.model_type) {
      return decide(row.kind, cat("model_type is ", row.model_type));
    }
  }
  if (std::optional<std::string> pooling = pooling_module(folder)) {
    return decide(ModelKind::embedding, *pooling);
  }
  for (const std::string& name : architectures_of(config)) {
    if (std::find(
            kEmbeddingArchitectures.begin(),
            kEmbeddingArchitectures.end(),
            name) != kEmbeddingArchitectures.end()) {
      return decide(ModelKind::embedding, cat("architectures has ", name));
    }
  }
  for (const char* key : {"use_bidirectional_attention", "is_bidirectional"}) {
    auto value = config.json().find(key);
    if (value != config.json().end() && value->is_boolean() &&
        value->get<bool>()) {
      return decide(ModelKind::embedding, cat(key, " is true"));
    }
  }
}

// The one family that the architectures name, or null when none is known.
const Family* family_of_architectures(const Config& config) {
  const Family* family = nullptr;
  for (const std::string& name : architectures_of(config)) {
    const Family* found = find_by_architecture(name);
    if (found != nullptr && family != nullptr && found->type != family->type) {
      throw ConfigError(
          cat(config.file(), ": \"architectures\" is ambiguous"),
          cat(joined(architectures_of(config)),
              " are different families (",
              family->name,
              ", ",
              found->name,
              ")"),
          "keep the one that the weights belong to");
    }
    family = family == nullptr ? found : family;
  }
  return family;
}

[[noreturn]] void refuse_missing_type(const Config& config) {
  std::vector<std::string> names = architectures_of(config);
  if (names.empty()) {
    throw ConfigError(
        cat(config.file(), ": \"model_type\" is missing"),
        "\"architectures\" is missing too, so nothing says which model this is",
        "take config.json from the model's original publisher");
  }
  std::string near = did_you_mean(names.front(), known_architectures());
  throw ConfigError(
      cat(config.file(), ": unknown architecture \"", names.front(), "\""),
      cat("\"model_type\" is missing", near.empty() ? "" : "; ", near),
      "`mlxcel arch` lists the supported models");
}

[[noreturn]] void refuse_unknown_type(
    const Config& config, const std::string& model_type) {
  std::string near = did_you_mean(model_type, known_model_types());
  std::vector<std::string> names = architectures_of(config);
  std::string why = near;
  if (!names.empty()) {
    why += cat(why.empty() ? "" : "; ", "its architecture is ", joined(names));
  }
  throw ConfigError(
      cat(config.file(), ": unknown model_type \"", model_type, "\""),
      why,
      "`mlxcel arch` lists the supported models");
}

}  // namespace

Detection detect_model(const fs::path& folder, const Config& config) {
  Detection detection;
  const Family* by_architecture = family_of_architectures(config);
  std::optional<std::string> type = config.find<std::string>("model_type");
  detection.model_type = type.value_or("");
  detect_kind(folder, config, detection);
  if (!type) {
    if (by_architecture == nullptr) {
      if (detection.kind != ModelKind::generation) {
        detection.model_type = joined(architectures_of(config));
        return detection;
      }
      refuse_missing_type(config);
    }
    detection.model_type = joined(architectures_of(config));
    detection.family = by_architecture;
    return detection;
  }
  detection.family = find_by_model_type(*type);
  if (detection.family == nullptr) {
    if (detection.kind == ModelKind::generation) {
      refuse_unknown_type(config, *type);
    }
    return detection;
  }
  // Types may share a family's code: llama and mistral are both Llama.
  if (by_architecture != nullptr &&
      by_architecture->type != detection.family->type) {
    throw ConfigError(
        cat(config.file(), ": \"model_type\" and \"architectures\" disagree"),
        cat(*type,
            " is ",
            detection.family->name,
            ", ",
            joined(architectures_of(config)),
            " is ",
            by_architecture->name),
        "correct the one that does not fit the weights");
  }
  return detection;
}

const Family& require_generation(
    const Detection& detection, const Config& config) {
  if (detection.kind != ModelKind::generation) {
    std::string_view kind = name_of(detection.kind);
    bool vowel = kind.front() == 'e' || kind.front() == 'a';
    throw ConfigError(
        cat(fs::path(config.file()).parent_path().string(),
            " is ",
            vowel ? "an " : "a ",
            kind,
            " model and generates no text"),
        detection.evidence,
        "give a model that generates text");
  }
  if (detection.family->decoder == nullptr) {
    throw ConfigError(
        cat(config.file(),
            ": ",
            detection.family->name,
            " is not supported yet"),
        cat("model_type is ", detection.model_type),
        "`mlxcel arch` lists the supported models");
  }
  return *detection.family;
}

namespace {

bool has_any(
    std::string_view key, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return key.find(part) != std::string_view::npos;
  });
}

bool is_vision_key(std::string_view key) {
  return has_any(key, {"vision_tower.", "visual.", "vision_model."});
}

// What joins a tower to the text model, which is of no use without it.
bool is_connector_key(std::string_view key) {
  return has_any(
      key,
      {"multi_modal_projector.",
       "vision_adapter.",
       "vision_projection.",
       "vision_embedder.",
       "embed_vision.",
       "embed_audio.",
       "audio_tower."});
}

}  // namespace

bool has_vision_tower(const Config& config, const WeightMap& weights) {
  auto vision = config.json().find("vision_config");
  if (vision == config.json().end() || !vision->is_object() ||
      vision->empty() || config.get_or("language_model_only", false)) {
    return false;
  }
  return std::any_of(weights.begin(), weights.end(), [](const auto& entry) {
    return is_vision_key(entry.first);
  });
}

void drop_unused_tower(const Config& config, WeightMap& weights) {
  if (!config.json().contains("vision_config") &&
      !config.get_or("language_model_only", false)) {
    return;
  }
  for (const std::string& key : weights.keys()) {
    if (is_vision_key(key) || is_connector_key(key)) {
      weights.erase(key);
    }
  }
}

}  // namespace mlxcel
