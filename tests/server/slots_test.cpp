// Slots that are saved to files, and restored by other processes.
#include "io/safetensors.h"
#include "server/running_server.h"
#include "support/fixtures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace mlxcel {
namespace {

using nlohmann::json;
using testing::Answer;
using testing::RunningServer;
using testing::TemporaryFolder;

const std::string kPrompt =
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps "
    "over the lazy dog. Once more, and then a last time in the evening.";

struct SlotsTest : ::testing::Test {
  TemporaryFolder folder;
  std::string model = folder.path("model");
  std::string saved = folder.path("saved");

  SlotsTest() {
    testing::write_random_model(model);
    std::filesystem::create_directory(saved);
  }
  static json complete(const RunningServer& server, const std::string& prompt) {
    Answer answer = server.post(
        "/completion",
        {{"prompt", prompt},
         {"n_predict", 12},
         {"temperature", 0},
         {"return_tokens", true}});
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
  static Answer act(
      const RunningServer& server,
      const std::string& action,
      const json& body = {{"filename", "talk"}}) {
    return server.post("/slots/0?action=" + action, body);
  }
  static void expect_refused(
      const Answer& answer, int status, const std::string& part) {
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_THAT(answer.body, ::testing::HasSubstr(part));
  }
};

TEST_F(SlotsTest, AnotherProcessGoesOnFromASavedSlot) {
  json first, again;
  int64_t positions = 0;
  {
    RunningServer server(model, {"--slot-save-path", saved});
    first = complete(server, kPrompt);
    EXPECT_EQ(first["id_slot"], 0);
    again = complete(server, kPrompt + first["content"].get<std::string>());
    Answer answer = act(server, "save");
    ASSERT_EQ(answer.status, 200) << answer.body;
    json figures = answer.json();
    positions = figures["n_saved"];
    EXPECT_EQ(
        positions,
        again["tokens_evaluated"].get<int64_t>() +
            again["tokens_predicted"].get<int64_t>() - 1);
    EXPECT_EQ(figures["filename"], "talk");
    EXPECT_EQ(
        figures["n_written"], std::filesystem::file_size(saved + "/talk"));
  }
  RunningServer server(model, {"--slot-save-path", saved, "--threads", "1"});
  Answer answer =
      server.post("/slots/2?action=restore", {{"filename", "talk"}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["id_slot"], 2);
  EXPECT_EQ(answer.json()["n_restored"], positions);
  // All but the last prompt token, which is always computed, is there.
  json restored =
      complete(server, kPrompt + first["content"].get<std::string>());
  EXPECT_EQ(
      restored["timings"]["cache_n"],
      restored["tokens_evaluated"].get<int64_t>() - 1);
  EXPECT_EQ(restored["tokens"], again["tokens"]);
}

// Recurrent layers beside attention with a window. A state cannot be wound
// back, so one stands before the end of the prompt and one at the end of the
// answer.
TEST_F(SlotsTest, RecurrentStatesGoWithASlot) {
  std::string hybrid = folder.path("hybrid");
  std::filesystem::copy(
      testing::fixture_root() / "text/recurrent_gemma/model", hybrid);
  std::filesystem::copy(model + "/tokenizer.json", hybrid + "/tokenizer.json");
  std::vector<int> prompt;
  for (int i = 0; i < 90; ++i) {
    prompt.push_back(3 + i * 7 % 100);
  }
  auto answer_to = [](const RunningServer& server,
                      const std::vector<int>& tokens) {
    Answer answer = server.post(
        "/completion",
        {{"prompt", tokens},
         {"n_predict", 8},
         {"temperature", 0},
         {"ignore_eos", true},
         {"return_tokens", true}});
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  };
  std::vector<int> longer = prompt;
  json first, second;
  {
    RunningServer server(hybrid, {"--slot-save-path", saved});
    first = answer_to(server, prompt);
    Answer answer = act(server, "save");
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.json()["n_saved"], 97);
    for (int token : first["tokens"]) {
      longer.push_back(token);
    }
    longer.push_back(7);
    ASSERT_EQ(server.send("POST", "/v1/cache/reset", "").status, 200);
    second = answer_to(server, longer);
    EXPECT_EQ(second["timings"]["cache_n"], 0);
  }
  {
    RunningServer server(hybrid, {"--slot-save-path", saved, "--threads", "1"});
    Answer answer = act(server, "restore");
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.json()["n_restored"], 97);
    json again = answer_to(server, longer);
    EXPECT_EQ(again["timings"]["cache_n"], 97);
    EXPECT_EQ(again["tokens"], second["tokens"]);
    again = answer_to(server, prompt);
    EXPECT_EQ(again["timings"]["cache_n"], 89);
    EXPECT_EQ(again["tokens"], first["tokens"]);
  }
  // States that do not fit the tokens.
  SafetensorsFile file = read_safetensors(saved + "/talk", {.mmap = false});
  EXPECT_EQ(file.tensors.at("states").shape, Shape{2});
  const WeightTensor& old = file.tensors.at("states");
  std::byte* data = nullptr;
  WeightTensor tensor = make_weight(old.dtype, old.shape, &data);
  std::copy_n(old.data, old.bytes, data);
  data[4] = std::byte{120};
  WeightMap tensors = file.tensors;
  tensors.set("states", tensor);
  write_safetensors(saved + "/changed", tensors, file.metadata);
  RunningServer server(hybrid, {"--slot-save-path", saved});
  expect_refused(
      act(server, "restore", {{"filename", "changed"}}),
      400,
      "a state after 120 tokens");
}

TEST_F(SlotsTest, ErasingForgetsWhatTheSlotComputed) {
  RunningServer server(model, {"--slot-save-path", saved});
  complete(server, kPrompt);
  EXPECT_GT(complete(server, kPrompt)["timings"]["cache_n"], 0);
  Answer answer = server.send("POST", "/slots/0?action=erase", "");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_GT(answer.json()["n_erased"], int64_t(kPrompt.size()));
  EXPECT_EQ(server.get("/v1/cache/stats").json()["blocks"], 0);
  EXPECT_EQ(complete(server, kPrompt)["timings"]["cache_n"], 0);
}

TEST_F(SlotsTest, RefusesWhatCannotBeSaved) {
  RunningServer server(model, {"--slot-save-path", saved, "--parallel", "2"});
  expect_refused(act(server, "save"), 400, "nothing to save");
  complete(server, kPrompt);
  for (const char* name : {"", "../talk", "a/b", ".hidden", "a\\b", "a\nb"}) {
    expect_refused(act(server, "save", {{"filename", name}}), 400, "filename");
  }
  expect_refused(act(server, "save", json::object()), 400, "filename");
  expect_refused(
      act(server, "save", {{"filename", "a"}, {"more", 1}}), 400, "more");
  expect_refused(act(server, "keep"), 400, "save, restore or erase");
  expect_refused(act(server, "restore"), 400, "no saved slot talk");
  for (const char* id : {"2", "-1", "x", "99999999999"}) {
    expect_refused(
        server.post(
            std::string("/slots/") + id + "?action=save",
            {{"filename", "talk"}}),
        400,
        "slots 0 to 1");
  }
  EXPECT_TRUE(std::filesystem::is_empty(saved));
}

TEST_F(SlotsTest, RefusesFilesOfOthersAndDamagedOnes) {
  {
    RunningServer server(model, {"--slot-save-path", saved});
    complete(server, kPrompt);
    ASSERT_EQ(act(server, "save").status, 200);
  }
  std::string path = saved + "/talk";
  SafetensorsFile file = read_safetensors(path, {.mmap = false});
  auto change = [&](const char* name, size_t at) {
    WeightMap tensors = file.tensors;
    const WeightTensor& old = tensors.at(name);
    std::byte* data = nullptr;
    WeightTensor tensor = make_weight(old.dtype, old.shape, &data);
    std::copy_n(old.data, old.bytes, data);
    data[at] ^= std::byte{0x40};
    tensors.set(name, tensor);
    write_safetensors(saved + "/changed", tensors, file.metadata);
  };
  RunningServer server(model, {"--slot-save-path", saved});
  auto restore = [&] {
    return act(server, "restore", {{"filename", "changed"}});
  };
  change("content", 1000);
  expect_refused(restore(), 400, "not what was written");
  change("tokens", 7);  // the highest byte of a number
  expect_refused(restore(), 400, "outside the vocabulary");
  change("blocks", 0);
  expect_refused(restore(), 400, "block 64 does not follow block -1");
  auto metadata = file.metadata;
  metadata["format"] = "other";
  write_safetensors(saved + "/changed", file.tensors, metadata);
  expect_refused(restore(), 400, "another version");
  WeightMap fewer = file.tensors;
  fewer.erase("content");
  write_safetensors(saved + "/changed", fewer, file.metadata);
  expect_refused(restore(), 400, "'content'");
  std::ofstream(saved + "/changed", std::ios::trunc) << "text";
  expect_refused(restore(), 400, "changed");
  EXPECT_EQ(server.get("/v1/cache/stats").json()["blocks"], 0);
  EXPECT_EQ(act(server, "restore").status, 200);

  // One weight of the model differs.
  std::string weights = model + "/model.safetensors";
  SafetensorsFile base = read_safetensors(weights, {.mmap = false});
  const auto& [key, tensor] = *base.tensors.begin();
  std::byte* data = nullptr;
  WeightTensor other = make_weight(tensor.dtype, tensor.shape, &data);
  std::copy_n(tensor.data, tensor.bytes, data);
  data[0] ^= std::byte{1};
  WeightMap tensors = base.tensors;
  tensors.set(key, other);
  std::string second = folder.path("second");
  std::filesystem::copy(model, second);
  write_safetensors(second + "/model.safetensors", tensors, base.metadata);
  RunningServer stranger(second, {"--slot-save-path", saved});
  expect_refused(act(stranger, "restore"), 400, "another model");
}

TEST_F(SlotsTest, SavingNeedsAFolderAndThePromptCache) {
  testing::ProgramResult result = testing::run_program(
      {"serve", "--model", model, "--slot-save-path", folder.path("none")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, ::testing::HasSubstr("is no folder"));
  result = testing::run_program(
      {"serve",
       "--model",
       model,
       "--slot-save-path",
       saved,
       "--no-prompt-cache"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, ::testing::HasSubstr("needs the prompt cache"));
  RunningServer server(model);
  expect_refused(act(server, "save"), 501, "--slot-save-path");
}

}  // namespace
}  // namespace mlxcel
