// Ids that end a generation, and one BOS.
#include "text/special_ids.h"

#include "core/error.h"
#include "support/fixtures.h"
#include "support/temporary_folder.h"
#include "support/tokenizers.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

namespace mlxcel::testing {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

TEST(EosIdsTest, MergesAllSources) {
  TemporaryFolder folder;
  EXPECT_EQ(eos_ids(Json::object(), folder.path(), nullptr), Ids{});
  EXPECT_EQ(eos_ids({{"eos_token_id", 7}}, folder.path(), nullptr), Ids{7});
  folder.write("generation_config.json", R"({"eos_token_id": [3, 5.0]})");
  EXPECT_EQ(
      eos_ids({{"eos_token_id", {5, 7}}}, folder.path(), nullptr),
      (Ids{3, 5, 7}));
  EXPECT_EQ(
      eos_ids({{"text_config", {{"eos_token_id", 9}}}}, folder.path(), nullptr),
      (Ids{3, 5, 9}));
  std::unique_ptr<Tokenizer> tokenizer =
      Tokenizer::load(fixture_root() / "tokenizer/small_spm_bpe_byte_fallback");
  EXPECT_EQ(
      eos_ids({{"eos_token_id", nullptr}}, folder.path(), tokenizer.get()),
      (Ids{3, 5, 2}));
}

TEST(EosIdsTest, RefusesWhatIsNoId) {
  TemporaryFolder folder;
  EXPECT_THROW(
      eos_ids({{"eos_token_id", "</s>"}}, folder.path(), nullptr), TextError);
  EXPECT_THROW(
      eos_ids({{"eos_token_id", 1.5}}, folder.path(), nullptr), TextError);
  EXPECT_THROW(
      eos_ids({{"eos_token_id", 1e30}}, folder.path(), nullptr), TextError);
  EXPECT_THROW(
      eos_ids({{"eos_token_id", NAN}}, folder.path(), nullptr), TextError);
  folder.write("generation_config.json", "[1]");
  EXPECT_THROW(eos_ids(Json::object(), folder.path(), nullptr), TextError);
}

TEST(EncodePromptTest, AddsOneBos) {
  std::filesystem::path folder =
      fixture_root() / "tokenizer/small_spm_bpe_byte_fallback";
  std::unique_ptr<Tokenizer> tokenizer = Tokenizer::load(folder);
  std::string warning;
  auto bos_count = [&](const std::string& text, PromptKind kind) {
    Ids ids = encode_prompt(*tokenizer, text, kind, &warning);
    return std::count(ids.begin(), ids.end(), 1);
  };
  EXPECT_EQ(bos_count("hi", PromptKind::plain), 1);
  EXPECT_EQ(warning, "");
  // A template writes its own.
  EXPECT_EQ(bos_count("<s>hi", PromptKind::chat), 1);
  EXPECT_EQ(bos_count("hi", PromptKind::chat), 0);
  EXPECT_EQ(warning, "");
  EXPECT_EQ(bos_count("<s>hi", PromptKind::plain), 2);
  EXPECT_NE(warning.find("<s>"), std::string::npos);
}

// The default model's prompts, as the reference run had them.
TEST(EncodePromptTest, RendersTheDefaultModelsPrompts) {
  std::filesystem::path folder = default_model_folder();
  ASSERT_TRUE(std::filesystem::exists(folder / "tokenizer.json"))
      << "no default model in " << folder << ": run ./dev model";
  std::unique_ptr<Tokenizer> tokenizer = Tokenizer::load(folder);
  std::unique_ptr<ChatTemplate> chat = ChatTemplate::load(folder);
  ASSERT_NE(chat, nullptr);
  std::ifstream in(fixture_root() / "real/smollm2.json");
  auto file = nlohmann::ordered_json::parse(in);
  ASSERT_FALSE(file["prompts"].empty());
  for (const auto& prompt : file["prompts"]) {
    std::string text = chat->render({.messages = &prompt["messages"]});
    std::string warning;
    EXPECT_EQ(
        encode_prompt(*tokenizer, text, PromptKind::chat, &warning),
        Ids(prompt["prompt_ids"]));
    Ids ids = prompt["greedy"]["ids"];
    EXPECT_EQ(tokenizer->decode(ids, true), prompt["greedy"]["text"]);
  }
}

}  // namespace
}  // namespace mlxcel::testing
