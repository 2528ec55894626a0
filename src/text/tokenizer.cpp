#include "text/tokenizer.h"

#include "core/error.h"
#include "io/json.h"
#include "text/sentencepiece.h"
#include "text/textkit_call.h"
#include "text/tiktoken.h"
#include "text/tokenizer_config.h"

#include <algorithm>
#include <cstring>

namespace mlxcel {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Tokenizer::State {
  tk_tokenizer* handle = nullptr;
  std::optional<int32_t> bos, eos;
  ~State() {
    tk_tokenizer_free(handle);
  }
};

Tokenizer::Tokenizer() : state_(std::make_unique<State>()) {}
Tokenizer::~Tokenizer() = default;

namespace {

// Tokens that only tokenizer_config.json lists, in the order of their ids.
std::string missing_added_tokens(
    const TokenizerConfig& config, const Tokenizer& tokenizer) {
  auto decoder = config.json.find("added_tokens_decoder");
  if (decoder == config.json.end() || !decoder->is_object()) {
    return {};
  }
  std::vector<std::pair<long, Json>> missing;
  for (const auto& [id, token] : decoder->items()) {
    auto content = token.is_object() ? token.find("content") : token.end();
    if (token.is_object() && content != token.end() && content->is_string() &&
        !tokenizer.token_id(content->get<std::string>())) {
      missing.emplace_back(std::strtol(id.c_str(), nullptr, 10), token);
    }
  }
  if (missing.empty()) {
    return {};
  }
  std::stable_sort(
      missing.begin(), missing.end(), [](const auto& a, const auto& b) {
        return a.first < b.first;
      });
  Json list = Json::array();
  for (auto& [id, token] : missing) {
    list.push_back(std::move(token));
  }
  return list.dump();
}

// tokenizer.json, else what the folder has of the older formats.
std::unique_ptr<Tokenizer> read_tokenizer(
    const fs::path& folder, const TokenizerConfig& config) {
  if (fs::path file = folder / "tokenizer.json"; fs::exists(file)) {
    return Tokenizer::from_json(read_text_file(file), file.string());
  }
  std::vector<fs::path> others;
  std::error_code error;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    if (name == "tokenizer.model" || name == "tiktoken.model" ||
        name.ends_with(".tiktoken")) {
      others.push_back(entry.path());
    }
  }
  if (others.empty()) {
    throw TextError(
        cat("no tokenizer in ", folder.string()),
        "it has no tokenizer.json, tokenizer.model or .tiktoken file",
        "copy the tokenizer files of the original checkpoint into the folder");
  }
  // tokenizer.model comes last by name and is the common one.
  fs::path file = *std::max_element(others.begin(), others.end());
  std::string bytes = read_text_file(file);
  std::string json =
      is_tiktoken(bytes)
          ? tiktoken_to_json(bytes, file.string(), config)
          : sentencepiece_file_to_json(bytes, file.string(), config);
  return Tokenizer::from_json(json, file.string());
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::from_json(
    std::string_view json, const std::string& name) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  textkit_call(
      cat("cannot use the tokenizer ", name),
      "download the file again, or check that it is a tokenizer.json",
      [&](tk_sink sink, void* user) {
        return tk_tokenizer_new(
            json.data(), json.size(), &tokenizer->state_->handle, sink, user);
      });
  return tokenizer;
}

std::unique_ptr<Tokenizer> Tokenizer::load(const fs::path& folder) {
  TokenizerConfig config = TokenizerConfig::load(folder);
  std::unique_ptr<Tokenizer> tokenizer = read_tokenizer(folder, config);
  if (std::string added = missing_added_tokens(config, *tokenizer);
      !added.empty()) {
    textkit_call(
        cat("cannot add the tokens of ",
            (folder / "tokenizer_config.json").string()),
        "check added_tokens_decoder in that file",
        [&](tk_sink sink, void* user) {
          return tk_add_tokens(
              tokenizer->state_->handle,
              added.data(),
              added.size(),
              sink,
              user);
        });
  }
  auto named_id = [&](const char* name) -> std::optional<int32_t> {
    std::optional<std::string> token = config.named(name);
    return token ? tokenizer->token_id(*token) : std::nullopt;
  };
  tokenizer->state_->bos = named_id("bos_token");
  tokenizer->state_->eos = named_id("eos_token");
  return tokenizer;
}

const tk_tokenizer* Tokenizer::handle() const {
  return state_->handle;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, int flags) const {
  std::string bytes =
      textkit_call("cannot encode the text", "", [&](tk_sink sink, void* user) {
        return tk_encode(
            state_->handle, text.data(), text.size(), flags, sink, user);
      });
  std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
  if (!ids.empty()) {
    std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(int32_t));
  }
  return ids;
}

std::vector<int32_t> Tokenizer::encode(
    std::string_view text, bool add_special) const {
  return encode(text, add_special ? int(TK_ADD_SPECIAL) : 0);
}

std::vector<int32_t> Tokenizer::encode_plain(
    std::string_view text, bool add_special) const {
  return encode(text, TK_PLAIN_SPECIAL | (add_special ? TK_ADD_SPECIAL : 0));
}

std::string Tokenizer::decode(
    std::span<const int32_t> ids, bool skip_special) const {
  return textkit_call(
      "cannot decode the tokens", "", [&](tk_sink sink, void* user) {
        return tk_decode(
            state_->handle,
            ids.data(),
            ids.size(),
            skip_special ? 1 : 0,
            sink,
            user);
      });
}

int Tokenizer::vocab_size() const {
  return int(tk_vocab_size(state_->handle));
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  int64_t id = tk_token_to_id(state_->handle, token.data(), token.size());
  if (id < 0) {
    return std::nullopt;
  }
  return int32_t(id);
}

std::string Tokenizer::token_text(int32_t id) const {
  int code = TK_OK;
  std::string text = textkit_result(
      [&](tk_sink sink, void* user) {
        return tk_id_to_token(state_->handle, id, sink, user);
      },
      &code);
  return code == TK_OK ? text : std::string();
}

bool Tokenizer::is_special(int32_t id) const {
  return tk_is_special(state_->handle, id) != 0;
}

std::optional<int32_t> Tokenizer::bos() const {
  return state_->bos;
}

std::optional<int32_t> Tokenizer::eos() const {
  return state_->eos;
}

}  // namespace mlxcel
