// Every id, text and streamed prefix of the reference tokenizers.
#include "text/tokenizer.h"

#include "core/error.h"
#include "support/fixtures.h"
#include "support/tokenizers.h"
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace mlxcel::testing {
namespace {

using Json = nlohmann::ordered_json;

std::string bytes_of_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(char(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

bool is_valid_utf8(const std::string& text) {
  try {
    return !Json(text).dump().empty();
  } catch (const Json::exception&) {
    return false;
  }
}

class TokenizerFixture : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    tokenizer_case_ = load_tokenizer_case(GetParam());
    if (!tokenizer_case_.problem.empty()) {
      FAIL() << tokenizer_case_.problem;
    }
    expected_ = &tokenizer_case_.expected;
    // The large ones take a second to read: once for all tests.
    static std::map<std::string, std::shared_ptr<Tokenizer>> loaded;
    std::shared_ptr<Tokenizer>& slot = loaded[GetParam()];
    if (slot == nullptr) {
      slot = Tokenizer::load(tokenizer_case_.folder);
    }
    tokenizer_ = slot;
  }
  TokenizerCase tokenizer_case_;
  const Json* expected_ = nullptr;
  std::shared_ptr<Tokenizer> tokenizer_;
};

using Ids = std::vector<int32_t>;

TEST_P(TokenizerFixture, EncodesAndDecodesEveryString) {
  EXPECT_EQ(tokenizer_->vocab_size(), (*expected_)["vocab_size"].get<int>());
  ASSERT_FALSE((*expected_)["strings"].empty());
  for (const Json& row : (*expected_)["strings"]) {
    std::string text = row["text"];
    SCOPED_TRACE(row["text"].dump());
    Ids ids = row["ids"], plain = row["ids_no_special"];
    EXPECT_EQ(tokenizer_->encode(text, true), ids);
    EXPECT_EQ(tokenizer_->encode(text, false), plain);
    EXPECT_EQ(tokenizer_->decode(plain, false), row["decoded"]);
    EXPECT_EQ(tokenizer_->decode(ids, true), row["decoded_skip_special"]);
  }
}

TEST_P(TokenizerFixture, ReplacesIllFormedUtf8) {
  ASSERT_FALSE((*expected_)["bad_utf8"].empty());
  for (const Json& row : (*expected_)["bad_utf8"]) {
    std::string bytes = bytes_of_hex(row["bytes_hex"]);
    SCOPED_TRACE(row["bytes_hex"]);
    EXPECT_EQ(tokenizer_->encode(bytes, false), Ids(row["ids_no_special"]));
  }
}

TEST_P(TokenizerFixture, StreamsPrefixes) {
  ASSERT_FALSE((*expected_)["streaming"].empty());
  for (const Json& row : (*expected_)["streaming"]) {
    Ids ids = row["ids"];
    StreamDecoder stream(*tokenizer_, false);
    std::string sent;
    for (size_t k = 0; k < ids.size(); ++k) {
      SCOPED_TRACE(k);
      std::string whole = row["decoded_prefixes"][k];
      EXPECT_EQ(tokenizer_->decode(std::span(ids).first(k + 1), false), whole);
      std::string piece = stream.push(ids[k]);
      EXPECT_TRUE(is_valid_utf8(piece));
      sent += piece;
      if (!whole.ends_with("\xEF\xBF\xBD")) {
        EXPECT_EQ(sent, whole);  // nothing finished is held back
      }
    }
    sent += stream.finish();
    EXPECT_EQ(sent, row["decoded_prefixes"].back());
  }
}

// The pieces of every string's ids join to its decoding.
TEST_P(TokenizerFixture, StreamsEveryString) {
  for (const Json& row : (*expected_)["strings"]) {
    SCOPED_TRACE(row["text"].dump());
    for (bool skip : {false, true}) {
      Ids ids = row["ids"];
      StreamDecoder stream(*tokenizer_, skip);
      std::string sent;
      for (int32_t id : ids) {
        sent += stream.push(id);
      }
      sent += stream.finish();
      EXPECT_EQ(sent, tokenizer_->decode(ids, skip));
    }
  }
}

TEST_P(TokenizerFixture, RendersChats) {
  std::unique_ptr<ChatTemplate> chat_template =
      ChatTemplate::load(tokenizer_case_.folder);
  if (!expected_->contains("chat") || (*expected_)["chat"].empty()) {
    EXPECT_EQ(chat_template, nullptr);
    return;
  }
  ASSERT_NE(chat_template, nullptr);
  for (const auto& [name, row] : (*expected_)["chat"].items()) {
    SCOPED_TRACE(name);
    const Json& given = row["input"];
    ChatTemplate::Input input;
    input.messages = &given["messages"];
    input.tools = given.contains("tools") ? &given["tools"] : nullptr;
    input.kwargs = given.contains("kwargs") ? &given["kwargs"] : nullptr;
    input.add_generation_prompt = given.value("add_generation_prompt", false);
    if (row.contains("error")) {
      EXPECT_THROW(chat_template->render(input), TextError);
      continue;
    }
    std::string text = chat_template->render(input);
    EXPECT_EQ(text, row["text"]);
    EXPECT_EQ(tokenizer_->encode(text, false), Ids(row["ids"]));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    TokenizerFixture,
    ::testing::ValuesIn(tokenizer_case_names()),
    [](const auto& param_info) { return param_info.param; });

TEST(TokenizerTest, PlainEncodingKeepsSpecialTokensAsText) {
  std::unique_ptr<Tokenizer> tokenizer =
      Tokenizer::load(fixture_root() / "tokenizer/small_spm_bpe_byte_fallback");
  EXPECT_EQ(tokenizer->encode("</s>", false), Ids{2});
  Ids plain = tokenizer->encode_plain("</s>", false);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 2), 0);
  EXPECT_EQ(tokenizer->decode(plain, false), "</s>");
  // The setting does not stay behind.
  EXPECT_EQ(tokenizer->encode("</s>", false), Ids{2});
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_TRUE(tokenizer->is_special(1));
  EXPECT_FALSE(tokenizer->is_special(300));
  EXPECT_EQ(tokenizer->token_text(1), "<s>");
  EXPECT_EQ(tokenizer->token_text(1 << 20), "");
  EXPECT_EQ(tokenizer->token_text(-1), "");
  EXPECT_EQ(tokenizer->token_id("no such token"), std::nullopt);
}

TEST(StreamDecoderTest, LongRunsOfReplacementsFlowAndLoseNothing) {
  std::unique_ptr<Tokenizer> tokenizer =
      Tokenizer::load(fixture_root() / "tokenizer/small_bytelevel_bpe");
  // Ill-formed bytes, then characters cut at every place, many times over.
  std::string bytes;
  for (int i = 0; i < 40; ++i) {
    bytes += "\xEF\xBF\xBD";
  }
  bytes += "\xF0\x9F\x98\x80 end";
  Ids ids = tokenizer->encode(bytes, false);
  StreamDecoder stream(*tokenizer, false);
  std::string sent;
  size_t silent = 0, longest = 0;
  for (int32_t id : ids) {
    std::string piece = stream.push(id);
    silent = piece.empty() ? silent + 1 : 0;
    longest = std::max(longest, silent);
    sent += piece;
  }
  sent += stream.finish();
  EXPECT_EQ(sent, bytes);
  EXPECT_LE(longest, 11u);
}

TEST(TokenizerTest, NamesWhatIsWrong) {
  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / "mlxcel_tokenizer_test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  try {
    Tokenizer::load(folder);
    FAIL();
  } catch (const TextError& error) {
    EXPECT_EQ(error.summary(), "no tokenizer in " + folder.string());
  }
  std::vector<std::string> broken = {
      "",
      "{",
      "[]",
      "{\"model\": {\"type\": \"BPE\"}}",
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1},
          "merges": ["a b"]}})",
      R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}})",
      R"({"model": {"type": "Nope", "vocab": {}}})",
  };
  for (const std::string& text : broken) {
    SCOPED_TRACE(text);
    std::ofstream(folder / "tokenizer.json") << text;
    try {
      Tokenizer::load(folder);
      FAIL();
    } catch (const TextError& error) {
      EXPECT_EQ(
          error.summary(),
          "cannot use the tokenizer " + (folder / "tokenizer.json").string());
      EXPECT_FALSE(error.why().empty());
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace mlxcel::testing
