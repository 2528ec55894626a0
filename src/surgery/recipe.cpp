#include "surgery/recipe.h"

#include "core/error.h"
#include "io/checkpoint.h"
#include "text/yaml.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace mlxcel {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

struct FieldRule {
  std::string_view name;
  bool required;
};

struct OperationRule {
  OperationKind kind;
  std::string_view name;
  std::vector<FieldRule> fields;  // beside op and pattern
};

const std::vector<OperationRule>& operation_rules() {
  static const std::vector<OperationRule> rules = {
      {OperationKind::scale, "scale", {{"factor", true}}},
      {OperationKind::add,
       "add",
       {{"source", true}, {"alpha", false}, {"requantize", false}}},
      {OperationKind::prune,
       "prune",
       {{"granularity", true},
        {"layer_ids", false},
        {"head_ids", false},
        {"channel_ids", false}}},
      {OperationKind::replace,
       "replace",
       {{"source", true}, {"source_key", false}}},
      {OperationKind::interpolate,
       "interpolate",
       {{"source_a", true},
        {"source_b", true},
        {"ratio", true},
        {"method", true},
        {"requantize", false}}},
  };
  return rules;
}

template <typename T>
struct Choice {
  std::string_view name;
  T value;
  std::string_view ids;  // of a granularity
};

constexpr Choice<Granularity> kGranularities[] = {
    {"layer", Granularity::layer, "layer_ids"},
    {"attention_head", Granularity::attention_head, "head_ids"},
    {"mlp_channel", Granularity::mlp_channel, "channel_ids"},
};
constexpr Choice<Interpolation> kMethods[] = {
    {"lerp", Interpolation::lerp, ""},
    {"slerp", Interpolation::slerp, ""},
};

// One file, a folder of shards, or the folder that an index stands in.
WeightMap read_source(const fs::path& path) {
  if (fs::is_directory(path)) {
    return load_weights(path);
  }
  if (path.extension() == ".json") {
    if (path.filename() != "model.safetensors.index.json") {
      throw SurgeryError(
          cat(path.string(), " is no source"),
          "of JSON files only model.safetensors.index.json lists tensor files",
          "name a safetensors file, or the checkpoint's folder");
    }
    return load_weights(path.parent_path());
  }
  return read_safetensors(path).tensors;
}

class RecipeReader {
 public:
  RecipeReader(const fs::path& file, std::string_view text)
      : file_(file), document_(parse_yaml(text, file.string())) {}

  Recipe read() {
    Recipe recipe;
    recipe.file = file_;
    const json& root = document_.value;
    if (!root.is_object()) {
      fail(
          "",
          cat("the top level is ", type_of(root, ""), ", not a mapping"),
          "start with version: 1 and operations:");
    }
    check_fields(root, "", {"version", "operations"});
    auto version = root.find("version");
    if (version == root.end()) {
      fail("", "the field version is missing", "write version: 1");
    }
    if (!version->is_number_integer() || *version != 1) {
      fail(
          "/version",
          cat("version is ",
              version->dump(),
              ", and only 1 is "
              "known"),
          "write version: 1");
    }
    auto operations = root.find("operations");
    if (operations == root.end()) {
      fail(
          "",
          "the field operations is missing",
          "write operations: [] for a recipe that changes nothing");
    }
    if (!operations->is_array()) {
      fail(
          "/operations",
          cat("operations is ",
              type_of(*operations, "/operations"),
              ", not a list"),
          "write one list entry (- op: ...) an operation");
    }
    for (size_t i = 0; i < operations->size(); ++i) {
      recipe.operations.push_back(
          read_operation((*operations)[i], cat("/operations/", i)));
    }
    return recipe;
  }

 private:
  // "a list", "the string abc", "infinite": what stands at `pointer`.
  std::string type_of(const json& value, const std::string& pointer) const {
    if (value.is_null()) {
      return document_.not_finite.value(pointer, "empty");
    }
    return value.is_object() ? "a mapping"
           : value.is_array()
               ? "a list"
               : cat("the ", value.type_name(), " ", value.dump());
  }

  std::string place(const std::string& pointer) const {
    std::string where = document_.place(pointer);
    return where.empty() ? file_.string() : cat(file_.string(), ", ", where);
  }

  [[noreturn]] void fail(
      const std::string& pointer,
      const std::string& why,
      const std::string& fix) const {
    throw SurgeryError(cat("bad surgery recipe ", place(pointer)), why, fix);
  }

  void check_fields(
      const json& object,
      const std::string& pointer,
      const std::vector<std::string>& known) const {
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        std::string near = did_you_mean(key, known);
        fail(
            cat(pointer, "/", key),
            cat("unknown field ", key),
            near.empty()
                ? cat("known here: ", fmt::format("{}", fmt::join(known, ", ")))
                : near);
      }
    }
  }

  Operation read_operation(const json& entry, const std::string& pointer) {
    if (!entry.is_object()) {
      fail(
          pointer,
          cat("an operation is ", type_of(entry, pointer), ", not a mapping"),
          "write - op: scale with its fields below");
    }
    const OperationRule& rule = find_rule(entry, pointer);
    std::vector<std::string> known = {"op", "pattern"};
    for (const FieldRule& field : rule.fields) {
      known.emplace_back(field.name);
    }
    check_fields(entry, pointer, known);
    for (const FieldRule& field : rule.fields) {
      if (field.required) {
        require(entry, pointer, field.name, rule.name);
      }
    }
    Operation out;
    out.kind = rule.kind;
    out.place = place(pointer);
    require(entry, pointer, "pattern", rule.name);
    out.pattern = glob(entry, pointer);
    switch (out.kind) {
      case OperationKind::scale:
        out.factor = number(entry, pointer, "factor");
        break;
      case OperationKind::add:
        out.alpha =
            entry.contains("alpha") ? number(entry, pointer, "alpha") : 1;
        out.source = source(entry, pointer, "source");
        break;
      case OperationKind::prune:
        read_prune(entry, pointer, out);
        break;
      case OperationKind::replace:
        read_replace(entry, pointer, out);
        break;
      case OperationKind::interpolate:
        read_interpolate(entry, pointer, out);
        break;
    }
    if (auto flag = entry.find("requantize"); flag != entry.end()) {
      if (!flag->is_boolean()) {
        fail(
            pointer + "/requantize",
            cat("requantize is ",
                type_of(*flag, pointer + "/requantize"),
                ", not true or false"),
            "write requantize: true");
      }
      out.requantize = flag->get<bool>();
    }
    return out;
  }

  const OperationRule& find_rule(
      const json& entry, const std::string& pointer) const {
    std::vector<std::string> names;
    for (const OperationRule& rule : operation_rules()) {
      names.emplace_back(rule.name);
    }
    auto op = entry.find("op");
    std::string known = fmt::format("{}", fmt::join(names, ", "));
    if (op == entry.end()) {
      fail(
          pointer,
          "the field op is missing",
          cat("write op: with one of ", known));
    }
    for (const OperationRule& rule : operation_rules()) {
      if (op->is_string() && op->get_ref<const std::string&>() == rule.name) {
        return rule;
      }
    }
    std::string text = op->is_string() ? op->get<std::string>() : op->dump();
    std::string near = did_you_mean(text, names);
    fail(
        pointer + "/op",
        cat("unknown operation ", text),
        near.empty() ? cat("known operations: ", known) : near);
  }

  void require(
      const json& entry,
      const std::string& pointer,
      std::string_view field,
      std::string_view operation) const {
    if (!entry.contains(std::string(field))) {
      fail(
          pointer,
          cat("the field ", field, " is missing"),
          cat("op: ", operation, " needs it"));
    }
  }

  double number(
      const json& entry, const std::string& pointer, const char* field) const {
    const json& value = entry.at(field);
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      fail(
          cat(pointer, "/", field),
          cat(field,
              " is ",
              type_of(value, cat(pointer, "/", field)),
              ", and a finite number is needed"),
          "write a plain number such as 0.5");
    }
    double number = value.get<double>();
    if (!std::isfinite(float(number))) {
      fail(
          cat(pointer, "/", field),
          cat(field, " is ", value.dump(), ", and weights are changed in f32"),
          "its largest number is about 3.4e38");
    }
    return number;
  }

  std::string text(
      const json& entry, const std::string& pointer, const char* field) const {
    const json& value = entry.at(field);
    if (!value.is_string()) {
      fail(
          cat(pointer, "/", field),
          cat(field,
              " is ",
              type_of(value, cat(pointer, "/", field)),
              ", and a string is needed"),
          "put it in quotes");
    }
    return value.get<std::string>();
  }

  Glob glob(const json& entry, const std::string& pointer) const {
    std::string pattern = text(entry, pointer, "pattern");
    try {
      return Glob(pattern);
    } catch (const SurgeryError& error) {
      fail(
          pointer + "/pattern",
          cat("pattern: ", error.summary(), ": ", error.why()),
          error.fix());
    }
  }

  template <typename T, size_t N>
  const Choice<T>& choice(
      const json& entry,
      const std::string& pointer,
      const char* field,
      const Choice<T> (&choices)[N]) const {
    std::string value = text(entry, pointer, field);
    std::vector<std::string> names;
    for (const Choice<T>& option : choices) {
      if (option.name == value) {
        return option;
      }
      names.emplace_back(option.name);
    }
    std::string near = did_you_mean(value, names);
    fail(
        cat(pointer, "/", field),
        cat("unknown ", field, " ", value),
        near.empty() ? fmt::format("known: {}", fmt::join(names, ", ")) : near);
  }

  void read_prune(
      const json& entry, const std::string& pointer, Operation& out) const {
    const auto& granularity =
        choice(entry, pointer, "granularity", kGranularities);
    out.granularity = granularity.value;
    std::string field(granularity.ids);
    auto ids = entry.find(field);
    if (ids == entry.end()) {
      fail(
          pointer,
          cat("the field ", field, " is missing"),
          cat("granularity ", granularity.name, " needs it"));
    }
    for (const auto& other : kGranularities) {
      if (other.ids != granularity.ids &&
          entry.contains(std::string(other.ids))) {
        fail(
            cat(pointer, "/", other.ids),
            cat("the field ",
                other.ids,
                " does not belong to granularity ",
                granularity.name),
            cat("use ", field));
      }
    }
    std::string at = cat(pointer, "/", field);
    if (!ids->is_array() || ids->empty()) {
      fail(
          at,
          ids->is_array()
              ? cat(field, " is empty, so nothing would be pruned")
              : cat(field, " is ", type_of(*ids, at), ", not a list"),
          cat("write ", field, ": [0, 3]"));
    }
    for (size_t i = 0; i < ids->size(); ++i) {
      const json& id = (*ids)[i];
      if (!id.is_number_integer() || id < 0 ||
          id > std::numeric_limits<int32_t>::max() * int64_t(2)) {
        fail(
            cat(at, "/", i),
            cat(field,
                " holds ",
                type_of(id, cat(at, "/", i)),
                ", and whole numbers from 0 are needed"),
            cat("write ", field, ": [0, 3]"));
      }
      out.ids.push_back(id.get<int64_t>());
    }
    std::sort(out.ids.begin(), out.ids.end());
    out.ids.erase(std::unique(out.ids.begin(), out.ids.end()), out.ids.end());
  }

  void read_replace(
      const json& entry, const std::string& pointer, Operation& out) {
    out.source = source(entry, pointer, "source");
    if (!entry.contains("source_key")) {
      return;
    }
    out.source_key = text(entry, pointer, "source_key");
    size_t stars =
        size_t(std::count(out.source_key.begin(), out.source_key.end(), '*'));
    if (stars != out.pattern.stars()) {
      fail(
          cat(pointer, "/source_key"),
          cat("source_key ",
              out.source_key,
              " has ",
              stars,
              " wildcards (*) and pattern ",
              out.pattern.text(),
              " has ",
              out.pattern.stars()),
          "each * of the pattern fills the * of source_key at its place");
    }
    if (out.source_key.empty()) {
      fail(
          cat(pointer, "/source_key"),
          "source_key is empty",
          "name the source's tensor, or leave source_key out for the same key");
    }
  }

  void read_interpolate(
      const json& entry, const std::string& pointer, Operation& out) {
    out.ratio = number(entry, pointer, "ratio");
    if (out.ratio < 0 || out.ratio > 1) {
      fail(
          pointer + "/ratio",
          cat("ratio is ",
              entry.at("ratio").dump(),
              ", and it lies between 0 and 1"),
          "0 is source_a alone, 1 source_b alone");
    }
    out.method = choice(entry, pointer, "method", kMethods).value;
    out.source = source(entry, pointer, "source_a");
    out.source_b = source(entry, pointer, "source_b");
  }

  std::shared_ptr<const Source> source(
      const json& entry, const std::string& pointer, const char* field) {
    std::string written = text(entry, pointer, field);
    fs::path path = written;
    if (path.is_relative()) {
      path = file_.parent_path() / path;
    }
    path = path.lexically_normal();
    auto known = sources_.find(path);
    if (known != sources_.end()) {
      return known->second;
    }
    std::error_code ignored;
    if (written.empty() || !fs::exists(path, ignored)) {
      fail(
          cat(pointer, "/", field),
          cat(field, " names ", path.string(), ", and there is no such file"),
          "relative paths start at the recipe's folder; ~ is not expanded");
    }
    auto out = std::make_shared<Source>();
    out->path = path.string();
    try {
      out->tensors = read_source(path);
    } catch (const Error& error) {
      fail(cat(pointer, "/", field), error.what(), "");
    }
    sources_[path] = out;
    return out;
  }

  fs::path file_;
  YamlDocument document_;
  std::map<fs::path, std::shared_ptr<const Source>> sources_;
};

}  // namespace

std::string_view name_of(OperationKind kind) {
  for (const OperationRule& rule : operation_rules()) {
    if (rule.kind == kind) {
      return rule.name;
    }
  }
  return "";
}

Recipe read_recipe(const fs::path& file) {
  std::error_code ignored;
  std::ifstream in(file, std::ios::binary);
  std::stringstream text;
  if (!fs::is_regular_file(file, ignored) || !in) {
    throw SurgeryError(
        cat("cannot read surgery recipe ", file.string()),
        fs::is_directory(file, ignored) ? "it is a folder"
                                        : "there is no such file",
        "give the path of a YAML file with --surgery or MLXCEL_SURGERY");
  }
  text << in.rdbuf();
  try {
    return RecipeReader(file, text.str()).read();
  } catch (const TextError& error) {
    throw SurgeryError(error.summary(), error.why(), error.fix());
  }
}

}  // namespace mlxcel
