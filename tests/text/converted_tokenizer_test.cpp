// tokenizer.model and .tiktoken files: written here from the reference
// tokenizers' own vocabularies, and compared with their tables.
#include "core/error.h"
#include "support/fixtures.h"
#include "support/temporary_folder.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace mlxcel::testing {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

Json read_fixture(const std::string& name) {
  std::ifstream in(fixture_root() / "tokenizer" / name);
  return Json::parse(in);
}

// Protobuf wire format.
std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) {
    out.push_back(char((value & 0x7f) | 0x80));
  }
  out.push_back(char(value));
  return out;
}
std::string number_field(uint64_t field, uint64_t value) {
  return varint(field << 3) + varint(value);
}
std::string bytes_field(uint64_t field, const std::string& bytes) {
  return varint(field << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string float_field(uint64_t field, float value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return varint(field << 3 | 5) + bytes;
}
std::string piece_field(const std::string& text, float score, int type) {
  return bytes_field(
      1,
      bytes_field(1, text) + float_field(2, score) +
          number_field(3, uint64_t(type)));
}

int type_of(const std::string& text) {
  if (text == "<unk>") {
    return 2;
  }
  if (text == "<s>" || text == "</s>" || text == "<pad>" || text == "<mask>") {
    return 3;
  }
  return text.starts_with("<0x") ? 6 : 1;
}

// Pieces by id. A piece's score is the falling rank of its merge.
std::string bpe_model(const Json& model) {
  std::map<int, std::string> pieces;
  std::map<std::string, float> scores;
  for (const auto& [text, id] : model["vocab"].items()) {
    pieces[id] = text;
  }
  int rank = 0;
  for (const Json& merge : model["merges"]) {
    std::string text =
        merge[0].get<std::string>() + merge[1].get<std::string>();
    scores.emplace(text, -float(rank++));
  }
  std::string out;
  for (const auto& [id, text] : pieces) {
    float score = scores.contains(text) ? scores[text] : -1e6f;
    out += piece_field(text, score, type_of(text));
  }
  out += bytes_field(2, number_field(3, 2));  // trainer: BPE
  out += bytes_field(3, number_field(3, 1) + number_field(4, 0));
  return out;
}

TEST(SentencePieceTest, BpeModelGivesTheReferenceIds) {
  const char* name = "small_spm_bpe_byte_fallback";
  Json expected = read_fixture(std::string(name) + "/expected.json");
  Json source = read_fixture(std::string(name) + "/tokenizer.json");
  TemporaryFolder folder;
  folder.write("tokenizer.model", bpe_model(source["model"]));
  Json config = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  for (const Json& token : source["added_tokens"]) {
    config["added_tokens_decoder"][std::to_string(token["id"].get<int>())] =
        token;
  }
  folder.write("tokenizer_config.json", config.dump());
  std::unique_ptr<Tokenizer> tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer->vocab_size(), expected["vocab_size"].get<int>());
  EXPECT_EQ(tokenizer->bos(), 1);
  for (const Json& row : expected["strings"]) {
    std::string text = row["text"];
    // SentencePiece merges any two pieces whose sum is a piece, so it finds
    // four spaces in two pairs; the fixture's merges cannot.
    if (text.find("   ") == 0) {
      continue;
    }
    SCOPED_TRACE(row["text"].dump());
    Ids ids = row["ids"];
    EXPECT_EQ(tokenizer->encode(text, true), ids);
    EXPECT_EQ(tokenizer->decode(ids, true), row["decoded_skip_special"]);
  }
}

TEST(SentencePieceTest, UnigramModelGivesTheReferenceIds) {
  Json expected = read_fixture("small_unigram/expected.json");
  Json source = read_fixture("small_unigram/tokenizer.json");
  std::string model;
  for (const Json& piece : source["model"]["vocab"]) {
    std::string text = piece[0];
    model += piece_field(text, piece[1].get<float>(), type_of(text));
  }
  model += bytes_field(
      2, number_field(3, 1) + number_field(41, 0) + number_field(42, 2));
  model += bytes_field(3, number_field(3, 1) + number_field(4, 0));
  TemporaryFolder folder;
  folder.write("tokenizer.model", model);
  folder.write(
      "tokenizer_config.json",
      R"({"add_bos_token": true, "add_eos_token": true})");
  std::unique_ptr<Tokenizer> tokenizer = Tokenizer::load(folder.path());
  int compared = 0;
  for (const Json& row : expected["strings"]) {
    std::string text = row["text"];
    // The fixture's normalizer is NFKC, which leaves ASCII alone; its <mask>
    // takes the space before it, which no piece can say.
    if (std::any_of(text.begin(), text.end(), [](char c) { return c < 0; }) ||
        text.find("<mask>") != std::string::npos) {
      continue;
    }
    SCOPED_TRACE(row["text"].dump());
    EXPECT_EQ(tokenizer->encode(text, true), Ids(row["ids"]));
    EXPECT_EQ(
        tokenizer->decode(Ids(row["ids"]), true), row["decoded_skip_special"]);
    ++compared;
  }
  EXPECT_GT(compared, 10);
}

TEST(SentencePieceTest, NamesWhatIsWrong) {
  TemporaryFolder folder;
  Json source = read_fixture("small_spm_bpe_byte_fallback/tokenizer.json");
  std::string model = bpe_model(source["model"]);
  // Cut at any place: an error or a smaller vocabulary, never a crash.
  for (size_t size = 0; size < model.size(); size += 7) {
    folder.write("tokenizer.model", model.substr(0, size));
    try {
      Tokenizer::load(folder.path());
    } catch (const TextError& error) {
      EXPECT_NE(
          std::string(error.what()).find("tokenizer.model"), std::string::npos);
    }
  }
  folder.write("tokenizer.model", model);
  folder.write(
      "tokenizer_config.json", R"({"tokenizer_class": "XLMRobertaTokenizer"})");
  EXPECT_THROW(Tokenizer::load(folder.path()), TextError);
}

std::string base64(const std::string& bytes) {
  static const std::string digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? uint8_t(bytes[i + k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      bool used = i + k <= bytes.size() || k < 2;
      out += used && (k < 2 || i + k - 1 < bytes.size())
                 ? digits[group >> (18 - 6 * k) & 63]
                 : '=';
    }
  }
  return out;
}

// The byte-level alphabet, read off a vocabulary of all bytes: printable ones
// stand for themselves, the rest follow from U+0100 in order.
std::string bytes_of(const std::string& token) {
  std::map<uint32_t, char> alphabet;
  uint32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    bool printable = (byte >= 33 && byte <= 126) ||
                     (byte >= 161 && byte <= 172) || byte >= 174;
    alphabet[printable ? uint32_t(byte) : next++] = char(byte);
  }
  std::string out;
  for (size_t i = 0; i < token.size();) {
    auto lead = uint8_t(token[i]);
    uint32_t code = lead;
    if (lead >= 0x80) {
      code = uint32_t(lead & 0x1f) << 6 | (uint8_t(token[i + 1]) & 0x3f);
      ++i;
    }
    ++i;
    out.push_back(alphabet.at(code));
  }
  return out;
}

TEST(TiktokenTest, RanksGiveTheReferenceIds) {
  Json expected = read_fixture("small_bytelevel_bpe/expected.json");
  Json source = read_fixture("small_bytelevel_bpe/tokenizer.json");
  std::map<int, std::string> tokens;
  for (const auto& [text, id] : source["model"]["vocab"].items()) {
    tokens[id] = text;
  }
  std::string ranks;
  for (const auto& [id, text] : tokens) {
    ranks += base64(bytes_of(text)) + " " + std::to_string(id) + "\n";
  }
  Json config = {
      {"tokenizer_class", "QWenTokenizer"}, {"eos_token", "<|im_end|>"}};
  for (const Json& token : source["added_tokens"]) {
    config["added_tokens_decoder"][std::to_string(token["id"].get<int>())] =
        token;
  }
  TemporaryFolder folder;
  folder.write("qwen.tiktoken", ranks);
  folder.write("tokenizer_config.json", config.dump());
  std::unique_ptr<Tokenizer> tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer->vocab_size(), expected["vocab_size"].get<int>());
  EXPECT_EQ(tokenizer->eos(), 417);
  for (const Json& row : expected["strings"]) {
    SCOPED_TRACE(row["text"].dump());
    Ids ids = row["ids"];
    EXPECT_EQ(tokenizer->encode(std::string(row["text"]), true), ids);
    EXPECT_EQ(tokenizer->decode(ids, false), row["decoded"]);
  }

  // Qwen's own special tokens, where no file lists them.
  folder.write(
      "tokenizer_config.json", R"({"tokenizer_class": "QWenTokenizer"})");
  tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer->token_id("<|endoftext|>"), 415);
  EXPECT_EQ(tokenizer->token_id("<|extra_204|>"), 415 + 3 + 204);

  folder.write("tokenizer_config.json", R"({"tokenizer_class": "Other"})");
  std::filesystem::rename(
      folder.path() / "qwen.tiktoken", folder.path() / "tiktoken.model");
  EXPECT_THROW(Tokenizer::load(folder.path()), TextError);

  folder.write("tiktoken.model", "IQ== 0\nIg== x\n");
  try {
    Tokenizer::load(folder.path());
    FAIL();
  } catch (const TextError& error) {
    EXPECT_EQ(error.why(), "line 2 is not a base64 token and a rank");
  }
}

}  // namespace
}  // namespace mlxcel::testing
