#include "gguf/convert.h"
#include "text/tokenizer_json.h"

#include <algorithm>

namespace mlxcel {

using Json = nlohmann::ordered_json;

namespace {

// What tokenizer.ggml.pre names. The patterns are those of the published
// tokenizer.json files of the models after which the names are called.
struct PreTokenizerRow {
  std::string_view name;
  BytePreTokenizer pre;
  std::string_view normalizer;
  bool ignore_merges;
  bool add_bos;  // when the file does not say
};

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?)"
    R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

BytePreTokenizer gpt2_style(bool digits) {
  BytePreTokenizer out;
  out.digits = digits;
  out.gpt2_split = true;
  return out;
}

BytePreTokenizer one_pattern(const char* pattern) {
  BytePreTokenizer out;
  out.patterns = {pattern};
  return out;
}

const std::vector<PreTokenizerRow>& pre_tokenizers() {
  static const std::vector<PreTokenizerRow> rows = {
      {"gpt-2", gpt2_style(false), "", false, false},
      {"smollm", gpt2_style(true), "", false, false},
      {"starcoder", gpt2_style(true), "", false, false},
      {"llama-bpe", one_pattern(kLlama3Pattern), "", true, true},
      {"llama3", one_pattern(kLlama3Pattern), "", true, true},
      {"llama-v3", one_pattern(kLlama3Pattern), "", true, true},
      {"tekken", one_pattern(kTekkenPattern), "", true, true},
      {"qwen2", one_pattern(kQwen2Pattern), "NFC", false, false},
  };
  return rows;
}

const PreTokenizerRow& pre_tokenizer(const GgufFile& file) {
  auto name = file.get<std::string>("tokenizer.ggml.pre");
  std::vector<std::string> names;
  for (const PreTokenizerRow& row : pre_tokenizers()) {
    if (row.name == name) {
      return row;
    }
    names.emplace_back(row.name);
  }
  throw CheckpointError(
      cat("cannot import the tokenizer of ", file.name()),
      cat("tokenizer.ggml.pre is \"",
          name,
          "\"; known are ",
          fmt::format("{}", fmt::join(names, ", "))),
      "use the model's safetensors checkpoint instead");
}

std::vector<PieceType> token_types(const GgufFile& file, size_t count) {
  auto numbers = file.get_or<std::vector<int32_t>>(
      "tokenizer.ggml.token_type", std::vector<int32_t>(count, 1));
  std::vector<PieceType> types;
  for (int32_t number : numbers) {
    if (number < 1 || number > 6) {
      break;
    }
    types.push_back(PieceType(number));
  }
  if (types.size() != count) {
    throw CheckpointError(
        cat("cannot import the tokenizer of ", file.name()),
        cat("tokenizer.ggml.token_type does not hold ",
            count,
            " numbers from 1 to 6, one a token"),
        "convert the model again with a recent converter");
  }
  return types;
}

std::optional<int32_t> named_id(
    const GgufFile& file, const std::string& name, size_t tokens) {
  std::string key = "tokenizer.ggml." + name + "_token_id";
  if (file.metadata(key) == nullptr) {
    return std::nullopt;
  }
  auto id = file.get<int64_t>(key);
  if (id < 0 || id >= int64_t(tokens)) {
    throw CheckpointError(
        cat("cannot import the tokenizer of ", file.name()),
        cat(key, " is ", id, "; there are ", tokens, " tokens"),
        "convert the model again with a recent converter");
  }
  return int32_t(id);
}

std::string byte_bpe(
    const GgufFile& file,
    std::vector<std::string> tokens,
    std::optional<int32_t> bos) {
  const PreTokenizerRow& row = pre_tokenizer(file);
  std::vector<PieceType> types = token_types(file, tokens.size());
  ByteBpe model;
  model.pre_tokenizer = row.pre;
  model.normalizer = row.normalizer;
  model.ignore_merges = row.ignore_merges;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (types[id] == PieceType::control ||
        types[id] == PieceType::user_defined) {
      model.added.push_back(
          {int32_t(id), tokens[id], types[id] == PieceType::control});
    }
  }
  auto merges = file.get<std::vector<std::string>>("tokenizer.ggml.merges");
  for (const std::string& merge : merges) {
    // The first character may be a space only in tokens that BPE cannot make.
    size_t space = merge.find(' ', 1);
    if (space == std::string::npos) {
      throw CheckpointError(
          cat("cannot import the tokenizer of ", file.name()),
          cat("the merge \"", merge, "\" does not have two parts"),
          "convert the model again with a recent converter");
    }
    model.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  if (bos && file.get_or("tokenizer.ggml.add_bos_token", row.add_bos)) {
    model.bos = std::pair(tokens[size_t(*bos)], *bos);
  }
  model.tokens = std::move(tokens);
  return byte_bpe_json(model);
}

std::string sentencepiece(
    const GgufFile& file,
    std::vector<std::string> tokens,
    std::optional<int32_t> bos,
    std::optional<int32_t> eos) {
  std::vector<PieceType> types = token_types(file, tokens.size());
  auto scores = file.get<std::vector<float>>("tokenizer.ggml.scores");
  if (scores.size() != tokens.size()) {
    throw CheckpointError(
        cat("cannot import the tokenizer of ", file.name()),
        cat("tokenizer.ggml.scores holds ",
            scores.size(),
            " numbers for ",
            tokens.size(),
            " tokens"),
        "convert the model again with a recent converter");
  }
  SentencePieceModel model;
  for (size_t id = 0; id < tokens.size(); ++id) {
    model.pieces.push_back({std::move(tokens[id]), scores[id], types[id]});
  }
  model.add_dummy_prefix = file.get_or("tokenizer.ggml.add_space_prefix", true);
  if (file.get_or("tokenizer.ggml.add_bos_token", true)) {
    model.bos = bos;
  }
  if (file.get_or("tokenizer.ggml.add_eos_token", false)) {
    model.eos = eos;
  }
  return sentencepiece_json(model);
}

}  // namespace

GgufTokenizer gguf_tokenizer(const GgufFile& file) {
  auto tokens = file.get<std::vector<std::string>>("tokenizer.ggml.tokens");
  auto id = [&](const char* name) {
    return named_id(file, name, tokens.size());
  };
  std::optional<int32_t> bos = id("bos"), eos = id("eos"), pad = id("padding");

  GgufTokenizer out;
  Json& config = out.config;
  auto name_token = [&](const char* key, std::optional<int32_t> token) {
    if (token) {
      config[key] = tokens[size_t(*token)];
    }
  };
  name_token("bos_token", bos);
  name_token("eos_token", eos);
  name_token("unk_token", id("unknown"));
  name_token("pad_token", pad);
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config["clean_up_tokenization_spaces"] = false;
  config["model_max_length"] = file.get<int64_t>("llama.context_length");
  if (file.metadata("tokenizer.chat_template") != nullptr) {
    config["chat_template"] = file.get<std::string>("tokenizer.chat_template");
  }

  Json& generation = out.generation;
  generation = Json::object();
  if (bos) {
    generation["bos_token_id"] = *bos;
  }
  // The end of a turn may differ from the end of a text; both stop.
  std::vector<int32_t> ends;
  for (std::optional<int32_t> end : {eos, id("eot"), id("eom")}) {
    if (end && std::find(ends.begin(), ends.end(), *end) == ends.end()) {
      ends.push_back(*end);
    }
  }
  if (ends.size() == 1) {
    generation["eos_token_id"] = ends[0];
  } else if (!ends.empty()) {
    generation["eos_token_id"] = ends;
  }
  if (pad) {
    generation["pad_token_id"] = *pad;
  }

  auto kind = file.get<std::string>("tokenizer.ggml.model");
  if (kind == "gpt2") {
    out.tokenizer_json = byte_bpe(file, std::move(tokens), bos);
  } else if (kind == "llama") {
    out.tokenizer_json = sentencepiece(file, std::move(tokens), bos, eos);
  } else {
    throw CheckpointError(
        cat("cannot import the tokenizer of ", file.name()),
        cat("tokenizer.ggml.model is \"", kind, "\"; known are gpt2, llama"),
        "use the model's safetensors checkpoint instead");
  }
  return out;
}

}  // namespace mlxcel
