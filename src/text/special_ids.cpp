#include "text/special_ids.h"

#include "core/error.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mlxcel {

namespace {

void append(int64_t id, std::vector<int32_t>* out) {
  if (id >= 0 && id <= std::numeric_limits<int32_t>::max() &&
      std::find(out->begin(), out->end(), int32_t(id)) == out->end()) {
    out->push_back(int32_t(id));
  }
}

template <typename Json>
void collect(
    const Json& json, const std::string& file, std::vector<int32_t>* out) {
  auto found = json.find("eos_token_id");
  if (found == json.end() || found->is_null()) {
    return;
  }
  auto add = [&](const Json& value) {
    // Some published files write whole numbers as floats. Only what an int64
    // holds may be converted to one.
    double number = value.is_number() ? value.template get<double>() : NAN;
    if (!(std::abs(number) < 0x1p53) || number != std::trunc(number)) {
      throw TextError(
          cat("cannot use eos_token_id of ", file),
          cat("it holds ", value.dump(), ", not a token id"),
          "write a number or a list of numbers");
    }
    append(int64_t(number), out);
  };
  if (found->is_array()) {
    for (const Json& value : *found) {
      add(value);
    }
  } else {
    add(*found);
  }
}

}  // namespace

std::vector<int32_t> eos_ids(
    const nlohmann::json& config,
    const std::filesystem::path& folder,
    const Tokenizer* tokenizer) {
  std::vector<int32_t> ids;
  std::filesystem::path file = folder / "generation_config.json";
  collect(read_json_object(file), file.string(), &ids);
  if (config.is_object()) {
    std::string name = (folder / "config.json").string();
    collect(config, name, &ids);
    auto text = config.find("text_config");
    if (text != config.end() && text->is_object()) {
      collect(*text, name, &ids);
    }
  }
  if (tokenizer != nullptr && tokenizer->eos()) {
    append(*tokenizer->eos(), &ids);
  }
  return ids;
}

std::vector<int32_t> encode_prompt(
    const Tokenizer& tokenizer,
    std::string_view text,
    PromptKind kind,
    std::string* warning) {
  std::vector<int32_t> ids = tokenizer.encode(text, kind == PromptKind::plain);
  std::optional<int32_t> bos = tokenizer.bos();
  if (warning != nullptr && bos && ids.size() > 1 && ids[0] == *bos &&
      ids[1] == *bos) {
    *warning =
        cat("the prompt starts with ",
            tokenizer.token_text(*bos),
            " and the tokenizer adds another one; leave it out of the prompt");
  }
  return ids;
}

}  // namespace mlxcel
