#include "text/tokenizer_json.h"

#include "core/error.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace mlxcel {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string utf8(uint32_t code) {  // below U+0800
  if (code < 0x80) {
    return std::string(1, char(code));
  }
  return {char(0xC0 | code >> 6), char(0x80 | (code & 0x3f))};
}

Json added_json(const std::vector<AddedTokenSpec>& added) {
  Json out = Json::array();
  for (const AddedTokenSpec& token : added) {
    out.push_back(
        {{"id", token.id},
         {"content", token.content},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", token.special}});
  }
  return out;
}

// BOS in front and EOS at the end of every text.
Json template_processing(
    const std::optional<std::pair<std::string, int32_t>>& bos,
    const std::optional<std::pair<std::string, int32_t>>& eos) {
  Json special = Json::object();
  auto around = [&](const char* sequence, int type) {
    Json out = Json::array();
    auto put = [&](const std::pair<std::string, int32_t>& token) {
      out.push_back(
          {{"SpecialToken", {{"id", token.first}, {"type_id", type}}}});
      special[token.first] = {
          {"id", token.first},
          {"ids", Json::array({token.second})},
          {"tokens", Json::array({token.first})}};
    };
    if (bos) {
      put(*bos);
    }
    out.push_back({{"Sequence", {{"id", sequence}, {"type_id", type}}}});
    if (eos) {
      put(*eos);
    }
    return out;
  };
  Json single = around("A", 0);
  Json pair = single;
  for (Json& part : around("B", 1)) {
    pair.push_back(std::move(part));
  }
  return {
      {"type", "TemplateProcessing"},
      {"single", single},
      {"pair", pair},
      {"special_tokens", special}};
}

// The file's text: small parts through JSON, the vocabulary written directly,
// since ordered JSON objects are slow at that size.
std::string assemble(const Json& parts, const std::string& model) {
  Json head = {
      {"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
  head.update(parts);
  std::string out = head.dump(-1, ' ', false, Json::error_handler_t::replace);
  out.pop_back();
  return out + ",\"model\":" + model + "}";
}

// Vocabulary and merges of a BPE model. Of tokens that appear twice, the first
// keeps its id.
std::string bpe_body(
    const std::vector<std::string>& tokens,
    const std::vector<std::pair<std::string, std::string>>& merges) {
  std::string out = "\"vocab\":{";
  std::unordered_set<std::string_view> seen;
  for (size_t id = 0; id < tokens.size(); ++id) {
    // An empty token is a hole between the ids.
    if (!tokens[id].empty() && seen.insert(tokens[id]).second) {
      out += quoted(tokens[id]) + ":" + std::to_string(id) + ",";
    }
  }
  if (out.back() == ',') {
    out.pop_back();
  }
  out += "},\"merges\":[";
  for (const auto& [a, b] : merges) {
    // The short form cannot hold parts with spaces.
    if (a.find(' ') == std::string::npos && b.find(' ') == std::string::npos) {
      out += quoted(a + " " + b) + ",";
    } else {
      out += fmt::format("[{},{}],", quoted(a), quoted(b));
    }
  }
  if (out.back() == ',') {
    out.pop_back();
  }
  return out + "]";
}

Json split_json(const std::string& pattern) {
  return {
      {"type", "Split"},
      {"pattern", {{"Regex", pattern}}},
      {"behavior", "Isolated"},
      {"invert", false}};
}

// All ways to cut a piece into two pieces, the ones with the best score first:
// the order in which SentencePiece would merge them.
std::vector<std::pair<std::string, std::string>> merges_of(
    const std::vector<Piece>& pieces) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < pieces.size(); ++id) {
    ids.emplace(pieces[id].text, id);
  }
  struct Merge {
    float score;
    size_t left, right;
    std::string_view a, b;
  };
  std::vector<Merge> found;
  for (const Piece& piece : pieces) {
    if (piece.type != PieceType::normal) {
      continue;
    }
    std::string_view text = piece.text;
    size_t first = found.size();
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if ((uint8_t(text[cut]) & 0xC0) == 0x80) {
        continue;  // inside a character
      }
      auto left = ids.find(text.substr(0, cut));
      auto right = ids.find(text.substr(cut));
      if (left != ids.end() && right != ids.end()) {
        found.push_back(
            {piece.score,
             left->second,
             right->second,
             text.substr(0, cut),
             text.substr(cut)});
      }
    }
    std::sort(
        found.begin() + int64_t(first),
        found.end(),
        [](const Merge& x, const Merge& y) {
          return std::pair(x.left, x.right) < std::pair(y.left, y.right);
        });
  }
  std::stable_sort(
      found.begin(), found.end(), [](const Merge& x, const Merge& y) {
        return x.score > y.score;
      });
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(found.size());
  for (const Merge& merge : found) {
    merges.emplace_back(merge.a, merge.b);
  }
  return merges;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (k < count ? uint8_t(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += k <= count ? digits[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return out;
}

std::string unigram_body(const std::vector<Piece>& pieces) {
  std::string out = "\"vocab\":[";
  for (const Piece& piece : pieces) {
    out += fmt::format("[{},{}],", quoted(piece.text), double(piece.score));
  }
  if (out.back() == ',') {
    out.pop_back();
  }
  return out + "]";
}

}  // namespace

std::string byte_level_char(uint8_t byte) {
  auto printable = [](int code) {
    return (code >= 33 && code <= 126) || (code >= 161 && code <= 172) ||
           code >= 174;
  };
  if (printable(byte)) {
    return utf8(byte);
  }
  uint32_t code = 256;
  for (int other = 0; other < byte; ++other) {
    code += printable(other) ? 0 : 1;
  }
  return utf8(code);
}

std::string byte_level_text(std::string_view bytes) {
  std::string out;
  for (char byte : bytes) {
    out += byte_level_char(uint8_t(byte));
  }
  return out;
}

std::string byte_bpe_json(const ByteBpe& model) {
  Json steps = Json::array();
  if (model.pre_tokenizer.digits) {
    steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  }
  for (const std::string& pattern : model.pre_tokenizer.patterns) {
    steps.push_back(split_json(pattern));
  }
  Json byte_level = {
      {"type", "ByteLevel"},
      {"add_prefix_space", false},
      {"trim_offsets", true},
      {"use_regex", model.pre_tokenizer.gpt2_split}};
  steps.push_back(byte_level);

  Json parts;
  parts["added_tokens"] = added_json(model.added);
  parts["normalizer"] = model.normalizer.empty()
                            ? Json(nullptr)
                            : Json{{"type", model.normalizer}};
  parts["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  parts["post_processor"] =
      model.bos ? template_processing(model.bos, std::nullopt) : Json(nullptr);
  parts["decoder"] = {
      {"type", "ByteLevel"},
      {"add_prefix_space", true},
      {"trim_offsets", true},
      {"use_regex", true}};
  std::string body =
      cat("{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
          "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
          "\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":",
          model.ignore_merges,
          ",",
          bpe_body(model.tokens, model.merges),
          "}");
  return assemble(std::move(parts), body);
}

std::string sentencepiece_json(const SentencePieceModel& model) {
  const std::vector<Piece>& pieces = model.pieces;
  std::vector<AddedTokenSpec> added;
  std::optional<size_t> unknown;
  bool byte_fallback = false;
  for (size_t id = 0; id < pieces.size(); ++id) {
    PieceType type = pieces[id].type;
    byte_fallback = byte_fallback || type == PieceType::byte;
    if (type == PieceType::unknown && !unknown) {
      unknown = id;
    }
    if (type == PieceType::unknown || type == PieceType::control ||
        type == PieceType::user_defined) {
      added.push_back(
          {int32_t(id), pieces[id].text, type != PieceType::user_defined});
    }
  }
  added.insert(added.end(), model.added.begin(), model.added.end());
  auto token = [&](std::optional<int32_t> id)
      -> std::optional<std::pair<std::string, int32_t>> {
    if (!id || size_t(*id) >= pieces.size()) {
      return std::nullopt;
    }
    return std::pair(pieces[size_t(*id)].text, *id);
  };
  auto bos = token(model.bos), eos = token(model.eos);

  Json normalizers = Json::array();
  if (!model.precompiled_charsmap.empty()) {
    normalizers.push_back(
        {{"type", "Precompiled"},
         {"precompiled_charsmap", base64(model.precompiled_charsmap)}});
  }
  if (model.remove_extra_whitespaces) {
    normalizers.push_back(
        {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
    normalizers.push_back(
        {{"type", "Replace"},
         {"pattern", {{"Regex", " {2,}"}}},
         {"content", " "}});
  }
  Json pre_tokenizer = nullptr;
  if (model.unigram) {
    pre_tokenizer = {
        {"type", "Metaspace"},
        {"replacement", kSpaceMark},
        {"prepend_scheme", model.add_dummy_prefix ? "always" : "never"},
        {"split", true}};
  } else {  // pieces may reach over spaces: the text stays whole
    if (model.add_dummy_prefix) {
      normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
    }
    normalizers.push_back(
        {{"type", "Replace"},
         {"pattern", {{"String", " "}}},
         {"content", kSpaceMark}});
  }

  Json decoders = Json::array(
      {{{"type", "Replace"},
        {"pattern", {{"String", kSpaceMark}}},
        {"content", " "}},
       {{"type", "ByteFallback"}},
       {{"type", "Fuse"}}});
  if (model.add_dummy_prefix) {
    decoders.push_back(
        {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }

  Json parts;
  parts["added_tokens"] = added_json(added);
  parts["normalizer"] =
      normalizers.empty()
          ? Json(nullptr)
          : Json{{"type", "Sequence"}, {"normalizers", normalizers}};
  parts["pre_tokenizer"] = pre_tokenizer;
  parts["post_processor"] =
      bos || eos ? template_processing(bos, eos) : Json(nullptr);
  parts["decoder"] = model.unigram && !byte_fallback
                         ? pre_tokenizer
                         : Json{{"type", "Sequence"}, {"decoders", decoders}};

  if (model.unigram) {
    std::string body =
        cat("{\"type\":\"Unigram\",\"unk_id\":",
            unknown ? std::to_string(*unknown) : "null",
            ",\"byte_fallback\":",
            byte_fallback,
            ",",
            unigram_body(pieces),
            "}");
    return assemble(std::move(parts), body);
  }
  std::vector<std::string> tokens;
  tokens.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    tokens.push_back(piece.text);
  }
  std::string body =
      cat("{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":",
          unknown ? quoted(pieces[*unknown].text) : "null",
          ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
          "\"fuse_unk\":true,\"byte_fallback\":",
          byte_fallback,
          ",\"ignore_merges\":false,",
          bpe_body(tokens, merges_of(pieces)),
          "}");
  return assemble(std::move(parts), body);
}

}  // namespace mlxcel
