#include "loading/config_file.h"

#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace mlxcel {
namespace {

using testing::TemporaryFolder;

struct Case {
  const char* name;
  const char* text;
  const char* expected;  // JSON, or the start of the message
};

// The faults of published configs, each with what it must become.
const Case kMended[] = {
    {"strict JSON stays",
     R"({"a": [1, 2.5, "x", null, true]})",
     R"({"a":[1,2.5,"x",null,true]})"},
    {"byte order mark", "\xef\xbb\xbf{\"a\": 1}", R"({"a":1})"},
    {"line comment", "{\"a\": 1, // the first\n\"b\": 2}", R"({"a":1,"b":2})"},
    {"comment at the end", "{\"a\": 1} // done", R"({"a":1})"},
    {"block comment", R"({/* sizes */"a": /**/ 1})", R"({"a":1})"},
    {"comment signs in a string",
     R"({"u": "http://x/*y*/"})",
     R"({"u":"http://x/*y*/"})"},
    {"escaped quote before comment signs",
     R"({"u": "a\"// b"})",
     R"({"u":"a\"// b"})"},
    {"trailing comma in an object", R"({"a": 1, })", R"({"a":1})"},
    {"trailing comma in a list", "{\"a\": [1, 2,\n ]}", R"({"a":[1,2]})"},
    {"trailing comma before a comment",
     "{\"a\": [1, // one\n]}",
     R"({"a":[1]})"},
    {"comma and bracket in a string", R"({"a": ",]"})", R"({"a":",]"})"},
    {"integer as a string",
     R"({"num_hidden_layers": "12"})",
     R"({"num_hidden_layers":12})"},
    {"negative integer as a string",
     R"({"pad_token_id": "-1"})",
     R"({"pad_token_id":-1})"},
    {"real as a string",
     R"({"rms_norm_eps": "1e-05"})",
     R"({"rms_norm_eps":1e-05})"},
    {"numbers as strings in a list",
     R"({"eos_token_id": ["1", "2"]})",
     R"({"eos_token_id":[1,2]})"},
    {"number as a string in an object",
     R"({"rope_scaling": {"type": "linear", "factor": "8.0"}})",
     R"({"rope_scaling":{"factor":8.0,"type":"linear"}})"},
    {"boolean as a string",
     R"({"tie_word_embeddings": "True"})",
     R"({"tie_word_embeddings":true})"},
    {"boolean as a small string",
     R"({"attention_bias": "false"})",
     R"({"attention_bias":false})"},
    {"versions stay text",
     R"({"transformers_version": "4.5"})",
     R"({"transformers_version":"4.5"})"},
    {"names stay text",
     R"({"_name_or_path": "7"})",
     R"({"_name_or_path":"7"})"},
    {"types stay text", R"({"model_type": "42"})", R"({"model_type":"42"})"},
    {"tokens stay text", R"({"bos_token": "1"})", R"({"bos_token":"1"})"},
    {"labels stay text",
     R"({"id2label": {"0": "1"}})",
     R"({"id2label":{"0":"1"}})"},
    {"text that only begins as a number stays",
     R"({"a": "12 layers"})",
     R"({"a":"12 layers"})"},
    {"words that from_chars knows stay",
     R"({"a": "inf", "b": "nan"})",
     R"({"a":"inf","b":"nan"})"},
    {"empty text stays", R"({"a": ""})", R"({"a":""})"},
    {"torch prefix of a dtype",
     R"({"torch_dtype": "torch.bfloat16"})",
     R"({"torch_dtype":"bfloat16"})"},
    {"null stays null", R"({"head_dim": null})", R"({"head_dim":null})"},
    {"text_config is lifted",
     R"({"model_type": "w", "text_config": {"model_type": "t", "hidden_size": 8}})",
     R"({"hidden_size":8,"model_type":"w","text_config":{"hidden_size":8,"model_type":"t"}})"},
    {"text_config wins over equal names",
     R"({"vocab_size": 1, "text_config": {"vocab_size": 2}})",
     R"({"text_config":{"vocab_size":2},"vocab_size":2})"},
    {"a null in text_config does not win",
     R"({"vocab_size": 1, "text_config": {"vocab_size": null}})",
     R"({"text_config":{"vocab_size":null},"vocab_size":1})"},
    {"settings beside text_config are not the text model's",
     R"({"rope_scaling": {"type": "linear"}, "eos_token_id": 5, "text_config": {"hidden_size": 8, "rope_scaling": null}})",
     R"({"eos_token_id":5,"hidden_size":8,"rope_scaling":null,"text_config":{"hidden_size":8,"rope_scaling":null}})"},
    {"model_type comes from text_config when the top has none",
     R"({"text_config": {"model_type": "t"}})",
     R"({"model_type":"t","text_config":{"model_type":"t"}})"},
    {"quantization of the top level stays",
     R"({"quantization": {"bits": 4}, "text_config": {"quantization": {"bits": 8}}})",
     R"({"quantization":{"bits":4},"text_config":{"quantization":{"bits":8}}})"},
    {"text_config null", R"({"text_config": null})", R"({"text_config":null})"},
};

TEST(ConfigFileTest, MendsKnownFaults) {
  for (const Case& one : kMended) {
    EXPECT_EQ(sanitize_config(one.text, "c").dump(), one.expected) << one.name;
  }
}

const Case kRefused[] = {
    {"empty file", "", "cannot read c: not valid JSON at byte 1"},
    {"only a comment", "// {}", "cannot read c: not valid JSON at byte "},
    {"cut off", R"({"a": 1)", "cannot read c: not valid JSON at byte 8"},
    {"unfinished string", R"({"a": "x)", "cannot read c: not valid JSON at"},
    {"unfinished comment", R"({"a": 1} /* x)", "cannot read c: not valid JSON"},
    {"a comma alone in a list",
     R"({"a": [,]})",
     "cannot read c: not valid JSON"},
    {"two commas", R"({"a": [1,,]})", "cannot read c: not valid JSON"},
    {"single quotes", "{'a': 1}", "cannot read c: not valid JSON at byte 2"},
    {"Python words", R"({"a": None})", "cannot read c: not valid JSON"},
    {"two values", "{} {}", "cannot read c: not valid JSON at byte 4"},
    {"a list",
     "[1]",
     "cannot read c: expected a JSON object, found array\n  take config.json "
     "from the model's original publisher"},
    {"a number", "3", "cannot read c: expected a JSON object, found number"},
    {"repeated key",
     R"({"a": 1, "a": 1})",
     "cannot read c: key \"a\" appears twice in one object\n  keep one of the "
     "two entries"},
    {"a number too large", R"({"a": 1e999})", "cannot read c: not valid JSON"},
    {"a longer word than NaN",
     R"({"a": NaNs})",
     "cannot read c: not valid JSON"},
    {"ill-formed UTF-8", "{\"a\": \"\xff\"}", "cannot read c: not valid JSON"},
};

TEST(ConfigFileTest, RefusesTheRest) {
  for (const Case& one : kRefused) {
    try {
      sanitize_config(one.text, "c");
      ADD_FAILURE() << one.name;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith(one.expected))
          << one.name;
    }
  }
  using namespace std::string_view_literals;
  EXPECT_THROW(sanitize_config("{\"a\"\0: 1}"sv, "c"), ConfigError);
  std::string deep = "{\"a\":" + std::string(1000, '[');
  EXPECT_THROW(sanitize_config(deep, "c"), ConfigError);
}

TEST(ConfigFileTest, ReadsLiteralsThatJsonLacks) {
  Config config(
      sanitize_config(
          R"({"a": NaN, "b": Infinity, "c": [-Infinity, 1], "d": "Infinity"})",
          "c"),
      "c");
  EXPECT_TRUE(std::isnan(config.get<float>("a")));
  EXPECT_EQ(config.get<double>("b"), HUGE_VAL);
  EXPECT_EQ(config.get<std::vector<double>>("c")[0], -HUGE_VAL);
  EXPECT_EQ(config.get<double>("d"), HUGE_VAL);
  // They are no integers.
  EXPECT_THROW(config.get<int>("a"), ConfigError);
  EXPECT_THROW(config.get<int64_t>("b"), ConfigError);
}

// As transformers 5 saves them.
TEST(ConfigFileTest, ReadsTaggedNumbers) {
  Config config(
      sanitize_config(
          R"({"limit": [0.0, {"__float__": "Infinity"}],
              "low": {"__float__": -Infinity},
              "other": {"__float__": 1.5, "more": 2}})",
          "c"),
      "c");
  EXPECT_EQ(config.get<std::vector<double>>("limit")[1], HUGE_VAL);
  EXPECT_EQ(config.get<double>("low"), -HUGE_VAL);
  EXPECT_TRUE(config.json().at("other").is_object());
}

TEST(ConfigFileTest, ExplainsFoldersWithoutConfig) {
  TemporaryFolder folder;
  auto message = [&] {
    try {
      read_config(folder.path());
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(
      message(),
      cat(folder.path().string(),
          " has no config.json: config.json says which model the weights "
          "belong to\n  check the path, or fetch config.json from where the "
          "weights come"));
  folder.write("adapter_config.json", "{}");
  EXPECT_EQ(
      message(),
      cat(folder.path().string(),
          " is an adapter, not a model: it has adapter_config.json and no "
          "config.json\n  give the base model with --model and this folder "
          "with --adapter"));
  folder.write("config.json", "{\"a\": 1,}");
  EXPECT_EQ(read_config(folder.path()).get<int>("a"), 1);
}

}  // namespace
}  // namespace mlxcel
