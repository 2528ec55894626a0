#include "io/config.h"
#include "io/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace mlxcel {
namespace {

Config from_text(const std::string& text) {
  return Config(parse_json(text, "config.json"), "config.json");
}

template <typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ConfigTest, ReadsTypedValues) {
  Config config = from_text(R"({
    "layers": 3, "layers_as_real": 3.0, "eps": 1e-5, "theta": 10000,
    "tied": true, "name": "llama", "sizes": [1, 2], "nothing": null,
    "nested": {"width": 7}})");
  EXPECT_EQ(config.get<int>("layers"), 3);
  EXPECT_EQ(config.get<int64_t>("layers_as_real"), 3);
  EXPECT_FLOAT_EQ(config.get<float>("eps"), 1e-5f);
  EXPECT_FLOAT_EQ(config.get<float>("theta"), 10000);
  EXPECT_TRUE(config.get<bool>("tied"));
  EXPECT_EQ(config.get<std::string>("name"), "llama");
  EXPECT_EQ(config.get<std::vector<int>>("sizes"), (std::vector<int>{1, 2}));
  EXPECT_EQ(config.get_or("nothing", 5), 5);
  EXPECT_EQ(config.get_or("absent", 5), 5);
  EXPECT_FALSE(config.has("nothing"));
  EXPECT_EQ(config.find<int>("absent"), std::nullopt);
  EXPECT_EQ(config.sub("nested").get<int>("width"), 7);
  EXPECT_FALSE(config.find_sub("absent").has_value());
}

TEST(ConfigTest, RefusesWhatDoesNotFit) {
  Config config = from_text(R"({
    "half": 0.5, "huge": 3000000000, "word": "x", "nothing": null,
    "mixed": [1, "a"], "nested": {"width": "wide"}})");
  EXPECT_EQ(
      message_of([&] { config.get<int>("absent"); }),
      "config.json: \"absent\" is missing: the model cannot be built without "
      "it\n  take config.json from the model's original publisher");
  EXPECT_EQ(
      message_of([&] { config.get<int>("nothing"); }),
      "config.json: \"nothing\" is missing: its value is null\n  take "
      "config.json from the model's original publisher");
  EXPECT_EQ(
      message_of([&] { config.get<int>("half"); }),
      "config.json: \"half\" has the wrong type: expected an integer, found "
      "0.5\n  correct the value in the file");
  EXPECT_EQ(
      message_of([&] { config.get<int>("huge"); }),
      "config.json: \"huge\" has the wrong type: expected an integer, found "
      "3000000000\n  correct the value in the file");
  EXPECT_EQ(config.get<int64_t>("huge"), 3000000000);
  EXPECT_EQ(
      message_of([&] { config.get_or("word", 1.f); }),
      "config.json: \"word\" has the wrong type: expected a number, found "
      "\"x\"\n  correct the value in the file");
  EXPECT_EQ(
      message_of([&] { config.get<std::vector<int>>("mixed"); }),
      "config.json: \"mixed\" has the wrong type: expected a list, each entry "
      "an integer, found [1,\"a\"]\n  correct the value in the file");
  EXPECT_EQ(
      message_of([&] { config.sub("nested").get<int>("width"); }),
      "config.json: \"nested.width\" has the wrong type: expected an integer, "
      "found \"wide\"\n  correct the value in the file");
  EXPECT_EQ(
      message_of([&] { config.sub("word"); }),
      "config.json: \"word\" has the wrong type: expected an object, found "
      "\"x\"\n  correct the value in the file");
}

TEST(JsonTest, RefusesWhatIsNotStrictJson) {
  EXPECT_EQ(
      message_of([] { parse_json(R"({"a": {"b": 1, "b": 2}})", "f"); }),
      "cannot read f: key \"b\" appears twice in one object\n  keep one of the "
      "two entries");
  EXPECT_EQ(
      message_of([] { parse_json(std::string(65, '['), "f"); }),
      "cannot read f: nested deeper than 64 levels\n  no checkpoint file needs "
      "that; fetch the file again");
  for (const char* text :
       {"", "{", "{\"a\":}", "[1,]", "{} {}", "1e999", "\"\xff\""}) {
    EXPECT_THAT(
        message_of([&] { parse_json(text, "f"); }),
        ::testing::StartsWith("cannot read f: not valid JSON at byte "))
        << text;
  }
}

TEST(JsonTest, KeepsTheValue) {
  EXPECT_EQ(
      parse_json(R"([{"a": [1, -2, 0.5, null, true]}, "x", {}])", "f").dump(),
      R"([{"a":[1,-2,0.5,null,true]},"x",{}])");
}

}  // namespace
}  // namespace mlxcel
