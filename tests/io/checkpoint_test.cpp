#include "io/checkpoint.h"

#include "core/error.h"
#include "support/log_capture.h"
#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace mlxcel {
namespace {

using ::testing::ElementsAre;
using testing::LogCapture;
using testing::TemporaryFolder;

class CheckpointTest : public ::testing::Test {
 protected:
  // A file of one-element tensors, each holding `value`.
  void shard(
      const std::string& name,
      const std::vector<std::string>& keys,
      float value = 0) {
    WeightMap tensors;
    for (const std::string& key : keys) {
      std::byte* data = nullptr;
      tensors.set(key, make_weight(DType::f32, {1}, &data));
      std::memcpy(data, &value, sizeof(value));
    }
    write_safetensors(folder_.path() / name, tensors);
  }

  void index(const std::map<std::string, std::string>& weight_map) {
    std::string text = "{\"metadata\":{},\"weight_map\":{";
    for (const auto& [key, file] : weight_map) {
      text +=
          cat(text.back() == '{' ? "" : ",", "\"", key, "\":\"", file, "\"");
    }
    folder_.write("model.safetensors.index.json", text + "}}");
  }

  float value_of(const std::string& key) {
    WeightMap weights = load_weights(folder_.path());
    float value = -1;
    read_as_f32(weights.at(key), &value);
    return value;
  }

  std::string message_of_load() {
    try {
      load_weights(folder_.path());
    } catch (const Error& error) {
      std::string text = error.what();
      std::string from = folder_.path().string();
      for (size_t at = text.find(from); at != std::string::npos;
           at = text.find(from)) {
        text.replace(at, from.size(), "DIR");
      }
      return text;
    }
    return "no error";
  }

  std::vector<std::string> keys() {
    return load_weights(folder_.path()).keys();
  }

  TemporaryFolder folder_;
  LogCapture log_;
};

TEST_F(CheckpointTest, TakesAFolderOrAFileInIt) {
  shard("model.safetensors", {"a"});
  EXPECT_EQ(checkpoint_folder(folder_.path()), folder_.path());
  EXPECT_EQ(
      checkpoint_folder(folder_.path() / "model.safetensors"), folder_.path());
  try {
    checkpoint_folder(folder_.path() / "absent");
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        cat("there is no ",
            (folder_.path() / "absent").string(),
            "\n  give the folder of a checkpoint: config.json and "
            "*.safetensors"));
  }
}

TEST_F(CheckpointTest, ReadsAllFilesWithoutAnIndex) {
  shard("model-1.safetensors", {"a", "b"});
  shard("model-2.safetensors", {"c"});
  shard("adapters.safetensors", {"x.lora_a"});
  shard("adapter_model.safetensors", {"y.lora_a"});
  shard("._model-1.safetensors", {"hidden"});
  shard("consolidated.safetensors", {"other.names"});
  folder_.write("1_Pooling/model.safetensors", "not read");
  EXPECT_THAT(keys(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(log_.warnings, ElementsAre());
}

TEST_F(CheckpointTest, ReadsConsolidatedFilesWhenTheyAreAlone) {
  shard("consolidated-1.safetensors", {"a"});
  shard("consolidated-2.safetensors", {"b"});
  EXPECT_THAT(keys(), ElementsAre("a", "b"));
}

TEST_F(CheckpointTest, ReadsOnlyIndexedFiles) {
  shard("model-1.safetensors", {"a"}, 1);
  shard("model-2.safetensors", {"b"}, 2);
  shard("stray.safetensors", {"a", "z"}, 9);
  index({{"a", "model-1.safetensors"}, {"b", "model-2.safetensors"}});
  EXPECT_THAT(keys(), ElementsAre("a", "b"));
  EXPECT_EQ(value_of("a"), 1);
}

TEST_F(CheckpointTest, RefusesATensorInTwoFiles) {
  shard("model-1.safetensors", {"a", "b"});
  shard("model-2.safetensors", {"b"});
  EXPECT_EQ(
      message_of_load(),
      "tensor \"b\" is in two files: DIR/model-1.safetensors and "
      "DIR/model-2.safetensors\n  remove the file that does not belong to the "
      "model, or add model.safetensors.index.json");
  EXPECT_THROW(list_tensors(folder_.path()), CheckpointError);
}

TEST_F(CheckpointTest, TheIndexDecidesBetweenTwoFiles) {
  shard("model-1.safetensors", {"a", "b"}, 1);
  shard("model-2.safetensors", {"a", "b", "c"}, 2);
  index(
      {{"a", "model-1.safetensors"},
       {"b", "model-2.safetensors"},
       {"c", "model-2.safetensors"}});
  EXPECT_EQ(value_of("a"), 1);
  EXPECT_EQ(value_of("b"), 2);
}

TEST_F(CheckpointTest, AnIndexOfAbsentFilesGivesOneWarning) {
  shard("model.safetensors", {"a"}, 5);
  index({{"a", "model-1-of-2.safetensors"}, {"b", "model-2-of-2.safetensors"}});
  EXPECT_THAT(keys(), ElementsAre("a"));
  EXPECT_THAT(
      log_.warnings,
      ElementsAre(
          cat((folder_.path() / "model.safetensors.index.json").string(),
              " names absent files (model-1-of-2.safetensors and 1 more); "
              "reading the folder's own *.safetensors instead")));
}

TEST_F(CheckpointTest, AnIndexWithoutAnyFileNamesAShard) {
  index({{"a", "model-1-of-2.safetensors"}, {"b", "model-2-of-2.safetensors"}});
  EXPECT_EQ(
      message_of_load(),
      "DIR has no weights: model.safetensors.index.json names "
      "model-1-of-2.safetensors and 1 more files, but the folder has no "
      "*.safetensors file\n  fetch the missing files");
}

TEST_F(CheckpointTest, AnIndexedTensorMustBeThere) {
  shard("model-1.safetensors", {"a"});
  index({{"a", "model-1.safetensors"}, {"b", "model-1.safetensors"}});
  EXPECT_EQ(
      message_of_load(),
      "tensor \"b\" is missing: model.safetensors.index.json says that it is "
      "in DIR/model-1.safetensors\n  fetch that file again");
}

TEST_F(CheckpointTest, RefusesDamagedIndexes) {
  const std::string fix =
      "\n  fetch the index again, or remove it where the folder has all files";
  shard("model.safetensors", {"a"});
  const std::pair<const char*, const char*> cases[] = {
      {"{}", "\"weight_map\" is missing or no object"},
      {"[]", "\"weight_map\" is missing or no object"},
      {R"({"weight_map":[]})", "\"weight_map\" is missing or no object"},
      {R"({"weight_map":{}})", "\"weight_map\" names no tensor"},
      {R"({"weight_map":{"a":1}})", "weight_map[\"a\"] is not a file name"},
      {R"({"weight_map":{"a":"../x.safetensors"}})",
       "weight_map[\"a\"] = \"../x.safetensors\" is not the name of a file in "
       "the folder"},
      {R"({"weight_map":{"a":".."}})",
       "weight_map[\"a\"] = \"..\" is not the name of a file in the folder"},
  };
  for (const auto& [text, why] : cases) {
    folder_.write("model.safetensors.index.json", text);
    EXPECT_EQ(
        message_of_load(),
        cat("cannot read DIR/model.safetensors.index.json: ", why, fix));
  }
}

TEST_F(CheckpointTest, ExplainsFoldersWithoutWeights) {
  EXPECT_EQ(
      message_of_load(),
      "DIR has no weights: no *.safetensors file\n  weights are read from "
      "safetensors files only");
  folder_.write("pytorch_model.bin", "x");
  EXPECT_EQ(
      message_of_load(),
      "DIR has no weights: it has pytorch_model.bin, but no *.safetensors "
      "file\n  weights are read from safetensors files only");
  shard("adapters.safetensors", {"a.lora_a"});
  EXPECT_EQ(
      message_of_load(),
      "DIR is an adapter, not a model: its only tensors are in "
      "adapters.safetensors\n  give the base model with --model and this "
      "folder with --adapter");
}

TEST_F(CheckpointTest, ListsFromTheHeadersAlone) {
  shard("model-1.safetensors", {"a", "b"});
  shard("model-2.safetensors", {"c"});
  std::vector<CheckpointEntry> entries = list_tensors(folder_.path());
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[2].tensor.name, "c");
  EXPECT_EQ(entries[2].tensor.end - entries[2].tensor.begin, 4u);
  EXPECT_EQ(entries[2].file, folder_.path() / "model-2.safetensors");
}

}  // namespace
}  // namespace mlxcel
