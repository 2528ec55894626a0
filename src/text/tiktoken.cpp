#include "text/tiktoken.h"

#include "core/error.h"
#include "text/tokenizer_json.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <unordered_map>

namespace mlxcel {

namespace {

// The patterns that the tokenizers' own sources state.
constexpr const char* kCl100kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr int kQwenExtraTokens = 205;  // <|extra_0|> to <|extra_204|>

// Ids stay far below this; it bounds the table that a broken rank would make.
constexpr int64_t kMaxRank = 1 << 24;

std::optional<std::string> decode_base64(std::string_view text) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  while (text.ends_with('=')) {
    text.remove_suffix(1);
  }
  for (char c : text) {
    uint32_t digit;
    if (c >= 'A' && c <= 'Z') {
      digit = uint32_t(c - 'A');
    } else if (c >= 'a' && c <= 'z') {
      digit = uint32_t(c - 'a') + 26;
    } else if (c >= '0' && c <= '9') {
      digit = uint32_t(c - '0') + 52;
    } else if (c == '+' || c == '/') {
      digit = c == '+' ? 62 : 63;
    } else {
      return std::nullopt;
    }
    bits = (bits << 6 | digit) & 0xffffff;
    count += 6;
    if (count >= 8) {
      count -= 8;
      out.push_back(char(bits >> count));
    }
  }
  return out;
}

struct Line {
  std::string token;
  int64_t rank = 0;
};

std::optional<Line> parse_line(std::string_view text) {
  size_t space = text.find(' ');
  if (space == std::string_view::npos || space == 0) {
    return std::nullopt;
  }
  Line line;
  std::string_view number = text.substr(space + 1);
  auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), line.rank);
  std::optional<std::string> token = decode_base64(text.substr(0, space));
  if (error != std::errc() || end != number.data() + number.size() ||
      line.rank < 0 || line.rank > kMaxRank || !token || token->empty()) {
    return std::nullopt;
  }
  line.token = std::move(*token);
  return line;
}

using Ranks = std::unordered_map<std::string, int64_t>;

// The two parts whose merge makes the token: what is left when only merges of
// lower rank are done. Nothing when no two parts remain.
std::optional<std::pair<std::string, std::string>> parts_of(
    const std::string& token, int64_t rank, const Ranks& ranks) {
  std::vector<std::string> parts;
  for (char byte : token) {
    parts.emplace_back(1, byte);
  }
  while (parts.size() > 2) {
    size_t best = parts.size();
    int64_t best_rank = rank;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      auto found = ranks.find(parts[i] + parts[i + 1]);
      if (found != ranks.end() && found->second < best_rank) {
        best = i;
        best_rank = found->second;
      }
    }
    if (best == parts.size()) {
      return std::nullopt;
    }
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + int64_t(best) + 1);
  }
  if (parts.size() != 2 || !ranks.contains(parts[0]) ||
      !ranks.contains(parts[1])) {
    return std::nullopt;
  }
  return std::pair(std::move(parts[0]), std::move(parts[1]));
}

}  // namespace

bool is_tiktoken(std::string_view bytes) {
  return parse_line(bytes.substr(0, bytes.find('\n'))).has_value();
}

std::string tiktoken_to_json(
    std::string_view bytes,
    const std::string& file,
    const TokenizerConfig& config) {
  Ranks ranks;
  std::vector<Line> lines;
  size_t number = 0;
  while (!bytes.empty()) {
    size_t end = std::min(bytes.find('\n'), bytes.size());
    std::string_view text = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    ++number;
    if (text.ends_with('\r')) {
      text.remove_suffix(1);
    }
    if (text.empty()) {
      continue;
    }
    std::optional<Line> line = parse_line(text);
    if (!line || !ranks.emplace(line->token, line->rank).second) {
      throw TextError(
          cat("cannot read the tokenizer ", file),
          cat("line ",
              number,
              line ? " repeats a token" : " is not a base64 token and a rank"),
          "download the file again");
    }
    lines.push_back(std::move(*line));
  }
  std::sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    return a.rank < b.rank;
  });

  std::string kind;
  if (auto found = config.json.find("tokenizer_class");
      found != config.json.end() && found->is_string()) {
    kind = found->get<std::string>();
  }
  bool qwen = kind.starts_with("Q") || file.find("qwen") != std::string::npos;
  bool cl100k = kind.empty() || kind.starts_with("PreTrainedTokenizer") ||
                kind.starts_with("Llama") || kind.starts_with("ChatGLM");
  if (!qwen && !cl100k) {
    throw TextError(
        cat("cannot use the tokenizer ", file),
        cat("how a ", kind, " cuts words is not known here"),
        "use a checkpoint with a tokenizer.json");
  }

  ByteBpe model;
  model.ignore_merges = true;  // a word that is a token is not cut
  model.pre_tokenizer.patterns = {qwen ? kQwenPattern : kCl100kPattern};
  model.normalizer = qwen ? "NFC" : "";
  int64_t next = lines.empty() ? 0 : lines.back().rank + 1;
  model.tokens.resize(size_t(next));
  for (const Line& line : lines) {
    model.tokens[size_t(line.rank)] = byte_level_text(line.token);
    if (line.token.size() < 2) {
      continue;
    }
    if (auto parts = parts_of(line.token, line.rank, ranks)) {
      model.merges.emplace_back(
          byte_level_text(parts->first), byte_level_text(parts->second));
    }
  }
  // Qwen's own class states its special tokens in code.
  if (qwen && !config.json.contains("added_tokens_decoder")) {
    std::vector<std::string> names = {
        "<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    for (int i = 0; i < kQwenExtraTokens; ++i) {
      names.push_back(cat("<|extra_", i, "|>"));
    }
    for (const std::string& name : names) {
      model.added.push_back({int32_t(next++), name, true});
    }
  }
  return byte_bpe_json(model);
}

}  // namespace mlxcel
