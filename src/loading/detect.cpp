#include "loading/detect.h"

#include "io/checkpoint.h"
#include "io/json.h"
#include "models/registry.h"

#include <algorithm>
#include <array>
#include <optional>
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

// Whether config.json asks for a tower; `why` receives what says no although
// something speaks of one.
bool configured_tower(const Config& config, std::string& why) {
  auto vision = config.json().find("vision_config");
  if (config.get_or("language_model_only", false)) {
    why = "language_model_only is true";
    return false;
  }
  if (vision == config.json().end()) {
    return false;
  }
  if (!vision->is_object() || vision->empty()) {
    why =
        vision->is_null() ? "vision_config is null" : "vision_config is empty";
    return false;
  }
  return true;
}

// Reads the tensors' names where config.json asks for a tower.
void detect_tower(
    const fs::path& folder, const Config& config, Detection& detection) {
  if (!configured_tower(config, detection.vision_evidence)) {
    return;
  }
  std::vector<CheckpointEntry> entries;
  try {
    entries = list_tensors(folder);
  } catch (const Error&) {
    // Files that cannot be read are named when the weights are loaded.
  }
  detection.vision_tower =
      std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
        return is_vision_key(entry.tensor.name);
      });
  detection.vision_evidence =
      detection.vision_tower ? "it has vision_config and vision weights"
                             : "it has vision_config, but no vision weights";
}

// The registry's row of a kind that generates no text, or null.
const Family* family_of_kind(
    ModelKind kind, const Family* by_architecture, const Family* by_type) {
  for (const Family* family : {by_architecture, by_type}) {
    if (family != nullptr && family->kind == kind) {
      return family;
    }
  }
  return nullptr;
}

const Family* generating_family(
    const Config& config,
    const Detection& detection,
    bool has_type,
    const Family* by_architecture,
    const Family* by_type) {
  if (!has_type && by_architecture == nullptr) {
    refuse_missing_type(config);
  }
  if (!has_type) {
    return by_architecture;
  }
  if (by_type == nullptr) {
    refuse_unknown_type(config, detection.model_type);
  }
  if (by_type->variant != nullptr) {
    const Family* variant = by_type->variant(config);
    by_type = variant != nullptr ? variant : by_type;
  }
  // Types may share a family's code: llama and mistral are both Llama. An
  // architecture of a variant names the same checkpoints.
  bool known = by_architecture == nullptr ||
               by_architecture->type == by_type->type ||
               (by_architecture->variant != nullptr &&
                by_architecture->variant(config) == by_type);
  if (!known) {
    throw ConfigError(
        cat(config.file(), ": \"model_type\" and \"architectures\" disagree"),
        cat(detection.model_type,
            " is ",
            by_type->name,
            ", ",
            joined(architectures_of(config)),
            " is ",
            by_architecture->name),
        "correct the one that does not fit the weights");
  }
  return by_type;
}

}  // namespace

Detection detect_model(const fs::path& folder, const Config& config) {
  Detection detection;
  const Family* by_architecture = family_of_architectures(config);
  std::optional<std::string> type = config.find<std::string>("model_type");
  detection.model_type = type.value_or(joined(architectures_of(config)));
  detect_kind(folder, config, detection);
  const Family* by_type = type ? find_by_model_type(*type) : nullptr;
  if (detection.kind != ModelKind::generation) {
    detection.family = family_of_kind(detection.kind, by_architecture, by_type);
  } else {
    detection.family = generating_family(
        config, detection, type.has_value(), by_architecture, by_type);
    detect_tower(folder, config, detection);
  }
  if (detection.family != nullptr) {
    bool tower =
        detection.vision_tower && !detection.family->vision_type.empty();
    detection.type =
        tower ? detection.family->vision_type : detection.family->type;
  }
  return detection;
}

const Family& require_generation(
    const Detection& detection, const Config& config) {
  std::string folder = fs::path(config.file()).parent_path().string();
  if (detection.kind != ModelKind::generation) {
    std::string_view kind = name_of(detection.kind);
    bool vowel = kind.front() == 'e' || kind.front() == 'a';
    throw ConfigError(
        cat(folder,
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
  if (detection.vision_tower) {
    throw ConfigError(
        cat(folder, " is a vision-language model (", detection.type, ")"),
        cat("model_type is ",
            detection.model_type,
            "; ",
            detection.vision_evidence),
        "vision towers are not supported; set \"language_model_only\": true in "
        "config.json to use its text model alone");
  }
  return *detection.family;
}

std::string no_vision_tower_message(const fs::path& model) {
  return cat(
      "model ",
      model.string(),
      " was loaded without a vision tower (text-only checkpoint)");
}

void drop_unused_tower(const Config& config, WeightMap& weights) {
  const Family* family =
      find_by_model_type(config.get_or<std::string>("model_type", ""));
  bool may_have_one = family != nullptr && !family->vision_type.empty();
  if (!may_have_one && !config.json().contains("vision_config") &&
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
