#include "loading/config_file.h"

#include "io/checkpoint.h"
#include "io/json.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

namespace mlxcel {

namespace {

using Json = nlohmann::json;

// JSON has no literals for these; the parser sees marked strings in their
// place. The mark is a control character, which JSON text cannot hold raw.
constexpr std::array<std::pair<std::string_view, double>, 3> kLiterals = {{
    {"-Infinity", -std::numeric_limits<double>::infinity()},
    {"Infinity", std::numeric_limits<double>::infinity()},
    {"NaN", std::numeric_limits<double>::quiet_NaN()},
}};
constexpr std::string_view kMark = "\\u0001mlxcel:";  // as JSON text
constexpr std::string_view kParsedMark = "\001mlxcel:";

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9') || c == '_';
}

// One pass over the text outside of strings.
class TextMender {
 public:
  explicit TextMender(std::string_view text) : text_(text) {
    constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
    if (text_.starts_with(byte_order_mark)) {
      text_.remove_prefix(byte_order_mark.size());
    }
    out_.reserve(text_.size());
  }

  std::string mend() {
    while (at_ < text_.size()) {
      char c = text_[at_];
      if (c == '"') {
        copy_string();
      } else if (c == '/' && skip_comment()) {
        continue;
      } else if (c == ']' || c == '}') {
        drop_trailing_comma();
        put(c);
      } else if (!copy_literal()) {
        put(c);
      }
    }
    return std::move(out_);
  }

 private:
  void put(char c) {
    out_ += c;
    ++at_;
  }

  void copy_string() {
    put('"');
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        put('\\');
      }
      put(text_[at_]);
    }
    if (at_ < text_.size()) {
      put('"');
    }
  }

  // A comment becomes one space, so that it still separates. An unfinished
  // one is left to the parser's error.
  bool skip_comment() {
    std::string_view rest = text_.substr(at_);
    size_t end = std::string_view::npos;
    if (rest.starts_with("//")) {
      end = std::min(rest.find('\n'), rest.size());
    } else if (rest.starts_with("/*")) {
      size_t close = rest.find("*/", 2);
      end = close == std::string_view::npos ? close : close + 2;
    }
    if (end == std::string_view::npos) {
      return false;
    }
    out_ += ' ';
    at_ += end;
    return true;
  }

  void drop_trailing_comma() {
    size_t last = out_.find_last_not_of(" \t\r\n");
    if (last == std::string::npos || out_[last] != ',') {
      return;
    }
    // "[,]" is no list with a trailing comma.
    size_t before = last == 0 ? std::string::npos
                              : out_.find_last_not_of(" \t\r\n", last - 1);
    if (before != std::string::npos && out_[before] != '[' &&
        out_[before] != '{' && out_[before] != ',') {
      out_[last] = ' ';
    }
  }

  bool copy_literal() {
    if (at_ > 0 && is_word(text_[at_ - 1])) {
      return false;
    }
    std::string_view rest = text_.substr(at_);
    for (const auto& [literal, value] : kLiterals) {
      if (rest.starts_with(literal) &&
          (rest.size() == literal.size() || !is_word(rest[literal.size()]))) {
        out_ += cat('"', kMark, literal, '"');
        at_ += literal.size();
        return true;
      }
    }
    return false;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string out_;
};

// Fields whose strings stay strings whatever they look like.
bool is_text_field(std::string_view key) {
  for (std::string_view part :
       {"name",
        "version",
        "type",
        "architectures",
        "path",
        "commit",
        "revision",
        "license",
        "language",
        "template"}) {
    if (key.find(part) != std::string_view::npos) {
      return true;
    }
  }
  return key.ends_with("_token") || key == "id2label" || key == "label2id" ||
         key == "auto_map" || key == "task_specific_params";
}

std::optional<Json> number_in(std::string_view text) {
  for (const auto& [literal, value] : kLiterals) {
    if (text == literal || (text.starts_with(kParsedMark) &&
                            text.substr(kParsedMark.size()) == literal)) {
      return Json(value);
    }
  }
  if (text == "true" || text == "True") {
    return Json(true);
  }
  if (text == "false" || text == "False") {
    return Json(false);
  }
  // from_chars also reads "inf", "nan" and hexadecimal; only digits count here.
  if (text.find_first_not_of("0123456789+-.eE") != std::string_view::npos) {
    return std::nullopt;
  }
  const char* begin = text.data();
  const char* end = begin + text.size();
  int64_t integer = 0;
  if (auto [at, code] = std::from_chars(begin, end, integer);
      code == std::errc() && at == end) {
    return Json(integer);
  }
  double real = 0;
  if (auto [at, code] = std::from_chars(begin, end, real);
      code == std::errc() && at == end) {
    return Json(real);
  }
  return std::nullopt;
}

void mend_value(Json& value, bool text_field) {
  if (value.is_object()) {
    for (auto& [key, entry] : value.items()) {
      mend_value(entry, text_field || is_text_field(key));
    }
    // transformers 5 writes {"__float__": Infinity} for a number that is not
    // finite.
    auto tagged = value.find("__float__");
    if (value.size() == 1 && tagged != value.end() && tagged->is_number()) {
      value = Json(*tagged);
    }
  } else if (value.is_array()) {
    for (Json& entry : value) {
      mend_value(entry, text_field);
    }
  } else if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    constexpr std::string_view module = "torch.";
    if (text.starts_with(kParsedMark) || !text_field) {
      if (std::optional<Json> number = number_in(text)) {
        value = *std::move(number);
        return;
      }
    }
    if (text.starts_with(module)) {
      value = text.substr(module.size());
    }
  }
}

// What a config says for the whole of a text model and its towers. Without
// vocab_size in text_config the table's rows decide, whichever default holds.
bool is_of_the_whole(std::string_view key) {
  constexpr std::string_view kKeys[] = {
      "model_type",
      "architectures",
      "quantization",
      "quantization_config",
      "tie_word_embeddings",
      "vocab_size",
      "torch_dtype",
      "dtype",
      "language_model_only",
      "is_bidirectional",
      "use_bidirectional_attention",
      "auto_map"};
  constexpr std::string_view kEndings[] = {
      "_config", "_token_id", "_token_ids", "_token_index"};
  return std::ranges::find(kKeys, key) != std::end(kKeys) ||
         std::ranges::any_of(kEndings, [&](std::string_view ending) {
           return key.ends_with(ending);
         });
}

// A wrapped text model's fields come to the top. The published classes read all
// of its settings from there: others beside text_config say nothing of it, and
// go. The wrapper's own names for the whole stay.
void lift_text_config(Json& root) {
  auto nested = root.find("text_config");
  if (nested == root.end() || !nested->is_object() || nested->empty()) {
    return;
  }
  Json fields = *nested;
  Json whole = Json::object();
  for (auto& [key, value] : root.items()) {
    if (is_of_the_whole(key)) {
      whole[key] = std::move(value);
    }
  }
  root = std::move(whole);
  for (auto& [key, value] : fields.items()) {
    bool of_the_wrapper = key == "model_type" || key == "architectures" ||
                          key == "quantization" || key == "quantization_config";
    bool present = root.contains(key) && !root[key].is_null();
    if (!present || (!of_the_wrapper && !value.is_null())) {
      root[key] = value;
    }
  }
}

}  // namespace

Json sanitize_config(std::string_view text, const std::string& file) {
  Json root = parse_json(TextMender(text).mend(), file);
  if (!root.is_object()) {
    throw ConfigError(
        cat("cannot read ", file),
        cat("expected a JSON object, found ", root.type_name()),
        "take config.json from the model's original publisher");
  }
  mend_value(root, false);
  lift_text_config(root);
  return root;
}

Config read_config(const std::filesystem::path& folder) {
  std::filesystem::path path = folder / "config.json";
  if (!std::filesystem::exists(path)) {
    bool adapter = std::filesystem::exists(folder / "adapter_config.json");
    throw ConfigError(
        cat(folder.string(),
            adapter ? " is an adapter, not a model" : " has no config.json"),
        adapter ? "it has adapter_config.json and no config.json"
                : "config.json says which model the weights belong to",
        adapter
            ? "give the base model with --model and this folder with --adapter"
            : "check the path, or fetch config.json from where the weights "
              "come");
  }
  Config config(
      sanitize_config(read_text_file(path), path.string()), path.string());
  config.set_layout(weights_layout(folder));
  return config;
}

int64_t max_positions_of(const Config& config) {
  for (const char* key :
       {"max_position_embeddings",
        "n_positions",
        "max_sequence_length",
        "max_seq_len",
        "seq_length",
        "n_ctx"}) {
    if (std::optional<int64_t> value = config.find<int64_t>(key)) {
      return *value;
    }
  }
  return 0;
}

}  // namespace mlxcel
