// Log-probabilities of answers and of echoed prompts.
#include "server/chain_server.h"

#include <gtest/gtest.h>

#include <cmath>

namespace mlxcel {
namespace {

using nlohmann::json;
using testing::ChainServer;

TEST_F(ChainServer, LogProbabilitiesAreTheModelsOwn) {
  // A one-hot row of 288 is scaled by sqrt(288) in the norm: the next byte of a
  // chain has that logit, the end token a quarter of it, all others none.
  double scale = std::sqrt(288.0 / (1 + 288 * 1e-5));
  double total = std::log(std::exp(scale) + std::exp(scale / 4) + 286);
  json body = {
      {"prompt", json::array({json::array({256, 62, 65})})},
      {"max_tokens", 1},
      {"echo", true},
      {"logprobs", 2},
      {"temperature", 0}};
  json answer = server->post("/v1/completions", body).json();
  json logprobs = answer["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({"<|bos|>", ">", "A", "\uFFFD"}));
  // The BOS is no part of the text.
  EXPECT_EQ(logprobs["text_offset"], json({0, 0, 1, 2}));
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
  EXPECT_NEAR(logprobs["token_logprobs"][2], scale - total, 1e-4);
  EXPECT_NEAR(logprobs["token_logprobs"][3], scale - total, 1e-4);
  EXPECT_NEAR(logprobs["top_logprobs"][2]["<|eos|>"], scale / 4 - total, 1e-3);

  body = {
      {"messages", {{{"role", "user"}, {"content", "#"}}}},
      {"temperature", 0},
      {"logprobs", true},
      {"top_logprobs", 1},
      {"max_tokens", 2}};
  answer = server->post("/v1/chat/completions", body).json();
  json content = answer["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content[0]["token"], "u");
  EXPECT_EQ(content[0]["bytes"], json({'u'}));
  EXPECT_NEAR(content[0]["logprob"], scale - total, 1e-4);

  // Bytes of a character, token by token: behind '>' comes "Aé".
  body["messages"][0]["content"] = ">";
  body["max_tokens"] = 3;
  answer = server->post("/v1/chat/completions", body).json();
  content = answer["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3u);
  EXPECT_EQ(content[1]["bytes"], json::array({0xC3}));
  EXPECT_EQ(content[1]["token"], "\uFFFD");
  EXPECT_EQ(content[2]["bytes"], json::array({0xA9}));
  EXPECT_EQ(content[2]["top_logprobs"][0]["bytes"], json::array({0xA9}));
  body = {{"prompt", ">A"}, {"n_predict", 1}, {"n_probs", 1}};
  answer = server->post("/completion", body).json();
  EXPECT_EQ(
      answer["completion_probabilities"][0]["top_logprobs"][0]["bytes"],
      json::array({0xC3}));
}

TEST_F(ChainServer, OffsetsOfTokensCountCharactersOverTheWholeText) {
  json body = {
      {"prompt", ">"}, {"max_tokens", 13}, {"logprobs", 0}, {"temperature", 0}};
  // "Aé😀b한c.", a token a byte.
  const json expected = {0, 1, 1, 2, 2, 2, 2, 3, 4, 4, 4, 5, 6};
  json whole = server->post("/v1/completions", body).json()["choices"][0];
  EXPECT_EQ(whole["text"], "Aé😀b한c.");
  EXPECT_EQ(whole["logprobs"]["text_offset"], expected);
  body["stream"] = true;
  json streamed = json::array();
  for (const std::string& event :
       server->post("/v1/completions", body).events()) {
    if (event == "[DONE]") {
      continue;
    }
    json part = json::parse(event)["choices"][0]["logprobs"];
    for (const json& offset : part.value("text_offset", json::array())) {
      streamed.push_back(offset);
    }
  }
  EXPECT_EQ(streamed, expected);
}

TEST_F(ChainServer, AStreamBeginsWithTheEchoedPromptAndItsLogProbabilities) {
  for (int max_tokens : {0, 6}) {
    json body = {
        {"prompt", {"é#", ">"}},
        {"n", 2},
        {"max_tokens", max_tokens},
        {"echo", true},
        {"logprobs", 1},
        {"temperature", 0}};
    json whole = server->post("/v1/completions", body).json()["choices"];
    ASSERT_EQ(whole.size(), 4u);
    body["stream"] = true;
    std::vector<std::string> events =
        server->post("/v1/completions", body).events();
    ASSERT_EQ(events.back(), "[DONE]");
    events.pop_back();
    std::vector<json> joined(4);
    for (const std::string& event : events) {
      json choice = json::parse(event)["choices"][0];
      json& target = joined[choice["index"].get<size_t>()];
      if (target.is_null()) {
        // The prompt comes whole in the first piece.
        const char* prompt = choice["index"] < 2 ? "é#" : ">";
        EXPECT_TRUE(choice["text"].get<std::string>().starts_with(prompt));
        EXPECT_EQ(choice["logprobs"]["tokens"][0], "<|bos|>");
        target = choice;
        continue;
      }
      target["text"] =
          target["text"].get<std::string>() + choice["text"].get<std::string>();
      target["finish_reason"] = choice["finish_reason"];
      for (auto& [name, list] : target["logprobs"].items()) {
        for (const json& entry : choice["logprobs"][name]) {
          list.push_back(entry);
        }
      }
    }
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(joined[i], whole[i]) << max_tokens;
    }
    // "é" has two bytes, each a token, and is one character.
    const json expected = max_tokens == 0
                              ? json({0, 0, 0, 1})
                              : json({0, 0, 0, 1, 2, 3, 4, 5, 6, 7});
    EXPECT_EQ(joined[0]["logprobs"]["text_offset"], expected);
  }
}

}  // namespace
}  // namespace mlxcel
