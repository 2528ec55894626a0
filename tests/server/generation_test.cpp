// Answers of the generating routes: texts, ends, pieces and figures.
#include "server/chain_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>

namespace mlxcel {
namespace {

using nlohmann::json;
using testing::Answer;

const std::string kLong = "Aé😀b한c.";  // the chain behind '>'

using testing::ChainServer;
using testing::RunningServer;

struct Text {
  std::string text;
  std::string stop;  // stop_type or finish_reason
  std::string word;
  std::vector<std::string> pieces;
};

json body_for(
    const std::string& route, const std::string& prompt, bool stream) {
  json body = {{"temperature", 0}, {"stream", stream}};
  if (route == "/v1/chat/completions") {
    body["messages"] = {{{"role", "user"}, {"content", prompt}}};
  } else {
    body["prompt"] = prompt;
  }
  return body;
}

Text read_native(const Answer& answer, bool stream) {
  Text out;
  std::vector<std::string> events =
      stream ? answer.events() : std::vector<std::string>{answer.body};
  for (const std::string& event : events) {
    json value = json::parse(event);
    out.pieces.push_back(value["content"]);
    out.text += out.pieces.back();
    EXPECT_EQ(value["stop"].get<bool>(), &event == &events.back());
    out.stop = value.value("stop_type", "");
    out.word = value.value("stopping_word", "");
  }
  return out;
}

Text read_openai(const Answer& answer, bool stream) {
  Text out;
  if (!stream) {
    json choice = answer.json()["choices"][0];
    out.text = choice.contains("message") ? choice["message"]["content"]
                                          : choice["text"];
    out.stop = choice["finish_reason"];
    return out;
  }
  std::vector<std::string> events = answer.events();
  EXPECT_EQ(events.back(), "[DONE]");
  events.pop_back();
  for (const std::string& event : events) {
    json choice = json::parse(event)["choices"][0];
    std::string piece = choice.contains("delta")
                            ? choice["delta"].value("content", "")
                            : choice["text"].get<std::string>();
    out.pieces.push_back(piece);
    out.text += piece;
    if (!choice["finish_reason"].is_null()) {
      EXPECT_EQ(out.stop, "");
      out.stop = choice["finish_reason"];
    }
  }
  return out;
}

constexpr const char* kRoutes[] = {
    "/completion", "/v1/completions", "/v1/chat/completions"};

Text ask(const RunningServer& server, const std::string& route, json body) {
  bool stream = body["stream"];
  Answer answer = server.post(route, body);
  EXPECT_EQ(answer.status, 200) << answer.body;
  return route == "/completion" ? read_native(answer, stream)
                                : read_openai(answer, stream);
}

TEST_F(ChainServer, StopStringsNeverLeak) {
  struct Case {
    std::vector<std::string> stop;
    const char* text;
    const char* type;
    const char* word;
  };
  // The chain behind '#' is "uvw-klm".
  const Case cases[] = {
      {{"w-k"}, "uv", "word", "w-k"},
      {{"w-Q"}, "uvw-klm", "eos", ""},
      {{"-k", "w-k"}, "uv", "word", "w-k"},
      {{"klm"}, "uvw-", "word", "klm"},
      {{"lmX"}, "uvw-klm", "eos", ""}};
  for (const char* route : kRoutes) {
    for (bool stream : {false, true}) {
      for (const Case& c : cases) {
        json body = body_for(route, "#", stream);
        body["stop"] = c.stop;
        Text got = ask(*server, route, body);
        EXPECT_EQ(got.text, c.text) << route << stream;
        if (route == std::string("/completion")) {
          EXPECT_EQ(got.stop, c.type);
          EXPECT_EQ(got.word, c.word);
        } else {
          EXPECT_EQ(got.stop, "stop");
        }
      }
    }
  }
}

TEST_F(ChainServer, PiecesNeverSplitACharacter) {
  for (const char* route : kRoutes) {
    for (bool stream : {false, true}) {
      json body = body_for(route, ">", stream);
      Text got = ask(*server, route, body);
      EXPECT_EQ(got.text, kLong);
      for (const std::string& piece : got.pieces) {
        EXPECT_EQ(piece.find("\uFFFD"), std::string::npos);
      }
      body = body_for(route, "<", stream);
      EXPECT_EQ(ask(*server, route, body).text, "X\uFFFDY");
      body = body_for(route, ">", stream);
      body["stop"] = "😀";
      EXPECT_EQ(ask(*server, route, body).text, "Aé");
    }
  }
}

TEST_F(ChainServer, ACutCharacterIsTheSameStreamedAndWhole) {
  for (int n = 2; n <= 12; ++n) {
    json body = body_for("/completion", ">", false);
    body["n_predict"] = n;
    Text whole = ask(*server, "/completion", body);
    body["stream"] = true;
    EXPECT_EQ(ask(*server, "/completion", body).text, whole.text);
    EXPECT_EQ(whole.stop, "limit");
    EXPECT_TRUE(
        kLong.starts_with(whole.text) || whole.text.ends_with("\uFFFD"));
  }
}

TEST_F(ChainServer, PromptsHaveOneBos) {
  json native = {{"prompt", "hi"}, {"temperature", 0}, {"n_predict", 1}};
  EXPECT_EQ(server->post("/completion", native).json()["tokens_evaluated"], 3);
  json openai = {{"prompt", "hi"}, {"max_tokens", 1}};
  json usage = server->post("/v1/completions", openai).json()["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 3);
  json chat = body_for("/v1/chat/completions", "hi", false);
  usage = server->post("/v1/chat/completions", chat).json()["usage"];
  EXPECT_EQ(usage["prompt_tokens"], 3);
  json tokens = {{"content", "hi"}};
  EXPECT_EQ(
      server->post("/tokenize", tokens).json()["tokens"], json({104, 105}));
  tokens["add_special"] = true;
  EXPECT_EQ(
      server->post("/tokenize", tokens).json()["tokens"],
      json({256, 104, 105}));
}

TEST_F(ChainServer, ZeroTokensEchoThePrompt) {
  json body = {{"prompt", ">"}, {"max_tokens", 0}, {"echo", true}};
  json answer = server->post("/v1/completions", body).json();
  EXPECT_EQ(answer["choices"][0]["text"], ">");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
  // llama-server's own route gives one token for 0.
  body = {{"prompt", ">"}, {"n_predict", 0}, {"temperature", 0}};
  EXPECT_EQ(server->post("/completion", body).json()["content"], "A");
}

TEST_F(ChainServer, RandomSeedsFitIntoAnyReadersNumbers) {
  json body = {{"prompt", ">"}, {"n_predict", 1}};
  for (int i = 0; i < 8; ++i) {
    json answer = server->post("/completion", body).json();
    EXPECT_LE(
        answer["generation_settings"]["seed"].get<uint64_t>(), 0xFFFFFFFFu);
  }
}

TEST_F(ChainServer, SeveralPromptsAndAnswers) {
  json body = {
      {"prompt", {"#", ">"}}, {"n", 2}, {"temperature", 0}, {"echo", true}};
  json choices = server->post("/v1/completions", body).json()["choices"];
  ASSERT_EQ(choices.size(), 4u);
  EXPECT_EQ(choices[1]["text"], "#uvw-klm");
  EXPECT_EQ(choices[2]["text"], ">" + kLong);
  EXPECT_EQ(choices[3]["index"], 3);
  body = {{"prompt", {"#", ">"}}, {"temperature", 0}};
  json answers = server->post("/completion", body).json();
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[1]["content"], kLong);
  // Ids and texts in one prompt.
  body = {{"prompt", json::array({256, "#uv", 119})}, {"temperature", 0}};
  EXPECT_EQ(server->post("/completion", body).json()["content"], "-klm");
}

TEST_F(ChainServer, AStreamCanEndWithItsUsage) {
  json body = body_for("/v1/chat/completions", "#", true);
  body["stream_options"] = {{"include_usage", true}};
  std::vector<std::string> events =
      server->post("/v1/chat/completions", body).events();
  ASSERT_GT(events.size(), 3u);
  json last = json::parse(events[events.size() - 2]);
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["completion_tokens"], 8);  // the end token too
  EXPECT_EQ(json::parse(events[0])["choices"][0]["delta"]["role"], "assistant");
}

TEST_F(ChainServer, BiasAndPenaltiesReachTheSampler) {
  json body = body_for("/completion", "#", false);
  body["logit_bias"] = json::array({json::array({"u", false})});
  body["n_predict"] = 1;
  // Without its next byte the chain has only the end.
  EXPECT_EQ(ask(*server, "/completion", body).stop, "eos");
  body = body_for("/v1/completions", "#", false);
  body["logit_bias"] = {{"117", -100}};
  body["max_tokens"] = 1;
  EXPECT_EQ(ask(*server, "/v1/completions", body).stop, "stop");
  body = body_for("/completion", "#", false);
  body.update({{"ignore_eos", true}, {"n_predict", 9}});
  Text got = ask(*server, "/completion", body);
  EXPECT_EQ(got.stop, "limit");
  EXPECT_TRUE(got.text.starts_with("uvw-klm"));
}

TEST_F(ChainServer, AnswersSayWhatWasAsked) {
  json body = {
      {"prompt", "#"},
      {"temperature", 0},
      {"top_k", 7},
      {"seed", 5},
      {"n_predict", 3},
      {"n_probs", 1},
      {"return_tokens", true}};
  json answer = server->post("/completion", body).json();
  EXPECT_EQ(answer["tokens"], json({117, 118, 119}));
  EXPECT_EQ(answer["generation_settings"]["top_k"], 7);
  EXPECT_EQ(answer["generation_settings"]["seed"], 5);
  EXPECT_EQ(answer["tokens_predicted"], 3);
  EXPECT_EQ(answer["tokens_cached"], 2 + 2);
  EXPECT_EQ(answer["model"], "chain");
  EXPECT_EQ(answer["truncated"], false);
  EXPECT_EQ(answer["completion_probabilities"].size(), 3u);
  body["response_fields"] = {"content", "timings/predicted_n"};
  answer = server->post("/completion", body).json();
  EXPECT_EQ(answer, json({{"content", "uvw"}, {"predicted_n", 3}}));
}

TEST_F(ChainServer, TextRoutes) {
  json body = {{"tokens", {104, 105}}};
  EXPECT_EQ(server->post("/detokenize", body).json()["content"], "hi");
  body = {{"content", "é"}, {"with_pieces", true}};
  json tokens = server->post("/tokenize", body).json()["tokens"];
  EXPECT_EQ(tokens[0]["id"], 0xC3);
  EXPECT_EQ(tokens[0]["piece"], json::array({0xC3}));
  EXPECT_EQ(tokens[1]["piece"], json::array({0xA9}));
  body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  EXPECT_EQ(
      server->post("/apply-template", body).json()["prompt"], "<|bos|>hi");
}

TEST_F(ChainServer, ModelsHealthPropsAndSlots) {
  EXPECT_EQ(server->get("/health").json()["status"], "ok");
  json models = server->get("/v1/models").json();
  EXPECT_EQ(models["data"][0]["id"], "chain");
  EXPECT_EQ(server->get("/v1/models/chain").json()["id"], "chain");
  EXPECT_EQ(server->get("/v1/models/other").status, 404);
  // What Anthropic's clients read.
  EXPECT_EQ(models["has_more"], false);
  EXPECT_EQ(models["last_id"], "chain");
  json entry = models["data"][0];
  EXPECT_EQ(entry["type"], "model");
  EXPECT_EQ(entry["display_name"], "chain");
  std::tm parts{};
  ASSERT_NE(
      strptime(
          entry["created_at"].get<std::string>().c_str(),
          "%Y-%m-%dT%H:%M:%SZ",
          &parts),
      nullptr);
  EXPECT_EQ(timegm(&parts), entry["created"].get<std::time_t>());
  EXPECT_EQ(server->get("/props").json()["model_alias"], "chain");
  EXPECT_EQ(server->get("/props").json()["bos_token"], "<|bos|>");
  json slots = server->get("/slots").json();
  EXPECT_FALSE(slots[0]["is_processing"]);
  EXPECT_EQ(server->get("/metrics").status, 501);
}

TEST_F(ChainServer, BadRequestsNameWhatIsWrong) {
  struct Case {
    const char* route;
    const char* body;
    int status;
    const char* says;
  };
  const Case cases[] = {
      {"/completion", "{", 400, "not valid JSON"},
      {"/completion", "[]", 400, "must be a JSON object"},
      {"/completion", "{}", 400, "'prompt' is missing"},
      {"/completion", R"({"prompt":""})", 200, ""},  // the BOS is a prompt
      {"/completion", R"({"prompt":[]})", 400, "an empty array"},
      {"/completion", R"({"prompt":[300]})", 400, "token 300"},
      {"/completion", R"({"prompt":[-1]})", 400, "token -1"},
      {"/completion", R"({"prompt":{"a":1}})", 400, "not an object"},
      {"/completion",
       R"({"prompt":"a","temprature":1})",
       400,
       "did you mean temperature"},
      {"/completion", R"({"prompt":"a","temperature":-1})", 400, "temperature"},
      {"/completion",
       R"({"prompt":"a","temperature":"hot"})",
       400,
       "must be a number, not a string"},
      {"/completion", R"({"prompt":"a","top_p":2})", 400, "top-p"},
      {"/completion", R"({"prompt":"a","stop":[""]})", 400, "empty string"},
      {"/completion", R"({"prompt":"a","n_indent":2})", 400, "'n_indent'"},
      {"/completion", R"({"prompt":"a","n_cmpl":2})", 400, "'n_cmpl'"},
      {"/completion", R"({"prompt":"a","n_cmpl":1,"verbose":false})", 200, ""},
      {"/completion",
       R"({"prompt":"a","lora":[{"id":0,"scale":1}]})",
       400,
       "no adapter with id 0"},
      {"/completion",
       R"({"prompt":"a","logit_bias":[[999,1]]})",
       400,
       "token 999"},
      {"/v1/completions", R"({"prompt":"a","suffix":"b"})", 400, "'suffix'"},
      {"/v1/completions", R"({"prompt":"a","model":"gpt-4"})", 404, "'gpt-4'"},
      {"/v1/completions", R"({"prompt":"a","n":0})", 400, "from 1 to 128"},
      {"/v1/chat/completions", R"({})", 400, "'messages'"},
      {"/v1/chat/completions", R"({"messages":[]})", 400, "at least one"},
      {"/v1/chat/completions",
       R"({"messages":[{"content":"a"}]})",
       400,
       "\"role\""},
      {"/v1/chat/completions",
       R"({"messages":[{"role":"user","content":[{"type":"image_url",)"
       R"("image_url":{"url":"data:"}}]}]})",
       400,
       "was loaded without a vision tower (text-only checkpoint)"},
      {"/v1/chat/completions",
       R"({"messages":[{"role":"user","content":"a"}],"top_logprobs":2})",
       400,
       "'top_logprobs'"},
      {"/tokenize", "{}", 400, "'content'"},
      {"/detokenize", R"({"tokens":[1.5]})", 400, "1.5"},
      {"/lora-adapters", R"({"id":0})", 400, "Request body must be an array"},
      {"/v1/chat/completions",
       R"({"messages":[{"role":"user","content":"a"}],)"
       R"("chat_template_kwargs":{"messages":[]}})",
       400,
       "'chat_template_kwargs' sets 'messages'"},
      {"/v1/chat/completions",
       R"({"messages":[{"role":"user","content":"a"}],)"
       R"("chat_template_kwargs":{"bos_token":"<s>"}})",
       400,
       "'bos_token'"},
      {"/v1/embeddings",
       R"({"input":"a"})",
       501,
       "this server lacks an embedding model"},
      {"/rerank", "{}", 501, "this server lacks a reranker"},
      {"/infill", "{}", 501, "fill-in-the-middle"},
      {"/v1/load_lora_adapter", "{}", 501, "--lora-dir"},
      {"/tools", "{}", 403, "no tools"},
      {"/nowhere", "{}", 404, ""}};
  for (const Case& c : cases) {
    Answer answer = server->send("POST", c.route, c.body);
    EXPECT_EQ(answer.status, c.status) << c.route << c.body << answer.body;
    if (c.status != 200) {
      json error = answer.json()["error"];
      EXPECT_THAT(error["message"], ::testing::HasSubstr(c.says)) << c.body;
      EXPECT_NE(error.value("type", ""), "") << c.body;
    }
  }
}

TEST_F(ChainServer, ARequestCannotAskForMoreThanItMayCost) {
  auto status = [&](const char* field, const json& value) {
    json body = {{"prompt", "a"}, {"n_predict", 1}, {field, value}};
    Answer answer = server->post("/completion", body);
    if (answer.status != 200) {
      EXPECT_EQ(answer.status, 400) << answer.body;
      EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
    }
    return answer.status;
  };
  json few = json::array(), many = json::array(), biases = json::array();
  for (int i = 0; i < 300; ++i) {
    many.push_back("stop" + std::to_string(i));
    biases.push_back({i % 200, 0.5});
  }
  few = std::vector<std::string>(64, "x");
  EXPECT_EQ(status("stop", few), 200);
  EXPECT_EQ(status("stop", many), 400);
  EXPECT_EQ(status("stop", std::string(20000, 'x')), 400);
  EXPECT_EQ(status("logit_bias", biases), 400);
  json body = {{"dry_multiplier", 1}, {"prompt", "a"}, {"n_predict", 1}};
  body["dry_sequence_breakers"] = few;
  EXPECT_EQ(server->post("/completion", body).status, 200);
  body["dry_sequence_breakers"] = many;
  EXPECT_EQ(server->post("/completion", body).status, 400);
  body["dry_sequence_breakers"] = {"x", ""};
  Answer empty = server->post("/completion", body);
  EXPECT_EQ(empty.status, 400);
  EXPECT_THAT(empty.body, ::testing::HasSubstr("empty DRY sequence breaker"));
  // What is too much is refused before the rest is looked at.
  biases.push_back("no pair");
  body = {{"prompt", "a"}, {"logit_bias", biases}};
  EXPECT_THAT(
      server->post("/completion", body).body,
      ::testing::HasSubstr("more entries than the vocabulary"));
  json prompts = std::vector<std::vector<int>>(1000, {1});
  prompts.push_back({300});  // no token
  for (const char* route : {"/completion", "/v1/completions"}) {
    body = {{"prompt", prompts}};
    Answer answer = server->post(route, body);
    EXPECT_EQ(answer.status, 400);
    EXPECT_THAT(answer.body, ::testing::HasSubstr("asks for 1001 answers"))
        << route;
  }
  body = {{"prompt", {"a", "b", {300}}}, {"n", 30}};
  EXPECT_THAT(
      server->post("/v1/completions", body).body,
      ::testing::HasSubstr("asks for 90 answers"));
  // 5 answers of 2047 tokens with 251 entries each.
  body = {{"prompt", {"a", "b", "c", "d", "e"}}, {"n_probs", 250}};
  Answer refused = server->post("/completion", body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, ::testing::HasSubstr("log-probabilities"));
  body["n_predict"] = 2;
  EXPECT_EQ(server->post("/completion", body).status, 200);
}

TEST_F(ChainServer, LongBodiesAreReadAside) {
  std::string text(100000, 'a');
  EXPECT_EQ(
      server->post("/tokenize", {{"content", text}}).json()["tokens"].size(),
      text.size());
  for (const char* route : {"/completion", "/v1/completions"}) {
    Answer answer = server->post(route, {{"prompt", text}});
    EXPECT_EQ(answer.status, 400) << route;
    EXPECT_EQ(answer.json()["error"]["n_prompt_tokens"], text.size() + 1);
  }
  json chat = {{"messages", {{{"role", "user"}, {"content", text}}}}};
  EXPECT_EQ(
      server->post("/v1/chat/completions/input_tokens", chat)
          .json()["input_tokens"],
      text.size() + 1);
  EXPECT_EQ(server->post("/v1/chat/completions", chat).status, 400);
  EXPECT_EQ(
      server->post("/v1/messages/count_tokens", chat).json()["input_tokens"],
      text.size() + 1);
  EXPECT_EQ(server->post("/v1/responses", {{"input", text}}).status, 400);
}

// Bytes of the server's memory that are in use, or were at most.
int64_t memory_of(const RunningServer& server, const char* field) {
  std::ifstream status("/proc/" + std::to_string(server.process()) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) {
      return std::stoll(line.substr(line.find(':') + 1)) << 10;
    }
  }
  return 0;
}

TEST_F(ChainServer, AHugePromptIsRefusedByItsBeginning) {
  std::string text;
  while (text.size() < (8 << 20)) {
    text += "a\u0300 ";
  }
  // The text, its copies in the body and in JSON; not 100 bytes for each byte.
  [[maybe_unused]] int64_t allowed =
      memory_of(*server, "VmHWM") + 30 * int64_t(text.size());
  for (const char* route : {"/completion", "/v1/completions"}) {
    Answer answer = server->post(route, {{"prompt", text}});
    EXPECT_EQ(answer.status, 400) << route;
    json error = answer.json()["error"];
    EXPECT_EQ(error["type"], "exceed_context_size_error") << error;
    EXPECT_THAT(error["message"], ::testing::HasSubstr("at least"));
    EXPECT_GT(error["n_prompt_tokens"], 2048);
    EXPECT_EQ(error["n_ctx"], 2048);
  }
  json chat = {
      {"messages", {{{"role", "user"}, {"content", text}}}}, {"max_tokens", 1}};
  for (const char* route : {"/v1/chat/completions", "/v1/messages"}) {
    Answer answer = server->post(route, chat);
    EXPECT_EQ(answer.status, 400) << route;
    EXPECT_THAT(answer.body, ::testing::HasSubstr("at least"));
  }
  EXPECT_EQ(server->post("/v1/responses", {{"input", text}}).status, 400);
  // Where only the tokens are wanted, the limit is one of bytes.
  Answer answer = server->post("/tokenize", {{"content", text}});
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, ::testing::HasSubstr("at most 4194304"));
  answer = server->post("/v1/messages/count_tokens", chat);
  EXPECT_EQ(answer.status, 400);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // Sanitizers keep what was freed.
  EXPECT_LT(memory_of(*server, "VmHWM"), allowed);
  EXPECT_LT(memory_of(*server, "VmRSS"), allowed / 2);
#endif
}

TEST_F(ChainServer, APromptBeyondTheContextGivesBothNumbers) {
  json body = {{"prompt", std::string(3000, 'a')}};
  Answer answer = server->post("/completion", body);
  EXPECT_EQ(answer.status, 400);
  json error = answer.json()["error"];
  EXPECT_EQ(error["type"], "exceed_context_size_error");
  EXPECT_EQ(error["n_prompt_tokens"], 3001);
  EXPECT_EQ(error["n_ctx"], 2048);
  EXPECT_THAT(error["message"], ::testing::HasSubstr("3001"));
  EXPECT_THAT(error["message"], ::testing::HasSubstr("2048"));
  // A full context ends the answer.
  body = {{"prompt", std::string(2047, 'a')}, {"ignore_eos", true}};
  answer = server->post("/completion", body);
  EXPECT_EQ(answer.json()["stop_type"], "limit");
}

}  // namespace
}  // namespace mlxcel
