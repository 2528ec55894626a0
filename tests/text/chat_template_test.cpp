// Single constructs of the template language, choice of the template, limits.
#include "text/chat_template.h"

#include "core/error.h"
#include "support/fixtures.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace mlxcel::testing {
namespace {

using Json = nlohmann::ordered_json;

std::string render(const std::string& source, const Json& messages = {}) {
  ChatTemplate::Input input;
  Json list = messages.is_null() ? Json::array() : messages;
  input.messages = &list;
  return ChatTemplate::from_source(source)->render(input);
}

TEST(ChatTemplateTest, RendersEveryConstruct) {
  std::ifstream in(fixture_root() / "tokenizer/jinja_features.json");
  Json file = Json::parse(in);
  ASSERT_FALSE(file["cases"].empty());
  for (const Json& row : file["cases"]) {
    std::string source = row["template"];
    SCOPED_TRACE(source);
    Json context = row["context"];
    bool generation = context.value("add_generation_prompt", true);
    Json tools = context.value("tools", Json());
    context.erase("tools");
    context.erase("add_generation_prompt");
    ChatTemplate::Input input;
    input.messages = &file["messages"];
    input.tools = &tools;
    input.kwargs = &context;
    input.add_generation_prompt = generation;
    if (row.contains("rendered")) {
      try {
        EXPECT_EQ(
            ChatTemplate::from_source(source)->render(input), row["rendered"]);
      } catch (const TextError& error) {
        ADD_FAILURE() << error.what();
      }
    } else {
      EXPECT_THROW(ChatTemplate::from_source(source)->render(input), TextError);
    }
  }
}

TEST(ChatTemplateTest, PassesOnWhatATemplateRaises) {
  try {
    render("{{ raise_exception('roles must alternate') }}");
    FAIL();
  } catch (const TextError& error) {
    EXPECT_EQ(error.summary(), "the chat template refuses these messages");
    EXPECT_EQ(error.why(), "roles must alternate");
  }
}

TEST(ChatTemplateTest, RefusesToChangeLists) {
  EXPECT_THROW(
      render("{% set x = [] %}{% set _ = x.append(1) %}{{ x }}"), TextError);
}

TEST(ChatTemplateTest, NamesTheLineOfAFault) {
  try {
    render("a\nb\n{{ 1 +");
    FAIL();
  } catch (const TextError& error) {
    EXPECT_NE(error.why().find("line 3"), std::string::npos) << error.what();
  }
}

TEST(ChatTemplateTest, BoundsWorkAndMemory) {
  const char* nested =
      "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}"
      "{% endfor %}";
  EXPECT_THROW(render(nested), TextError);
  EXPECT_THROW(render("{{ 'x' * 2000000000 }}"), TextError);
  EXPECT_THROW(
      render("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), TextError);
}

TEST(ChatTemplateTest, WritesJsonAsPythonDoes) {
  EXPECT_EQ(
      render("{{ messages | tojson }}", Json{{{"a", 1e-7}, {"b", 1e16}}}),
      R"([{"a": 1e-07, "b": 1e+16}])");
  EXPECT_EQ(
      render(
          "{{ messages | tojson(ensure_ascii=true, sort_keys=true) }}",
          Json{{{"b", "\xF0\x9F\x98\x80"}, {"a", "\x7f\x01"}}}),
      "[{\"a\": \"\x7f\\u0001\", \"b\": \"\\ud83d\\ude00\"}]");
  EXPECT_EQ(
      render(
          "{{ messages | tojson(separators=(',', ':')) }}", Json{{{"a", 1}}}),
      R"([{"a":1}])");
  EXPECT_EQ(
      render("{{ [] | tojson(indent=2) }}{{ {} | tojson(indent=2) }}"), "[]{}");
}

TEST(ChatTemplateTest, NoneIsNotIterable) {
  auto chat = ChatTemplate::from_source(
      "{% if tools is iterable and tools | length > 0 %}a{% else %}b{% endif %}"
      "{{ [] is iterable }}{{ 'x' is iterable }}{{ 3 is iterable }}");
  EXPECT_EQ(chat->render({}), "bTrueTrueFalse");
}

TEST(ChatTemplateTest, TellsTheTime) {
  std::string year = render("{{ strftime_now('%Y') }}");
  EXPECT_EQ(year.size(), 4u);
  EXPECT_EQ(year.find_first_not_of("0123456789"), std::string::npos);
}

TEST(ChatTemplateTest, PicksTheNamedTemplate) {
  TemporaryFolder folder;
  folder.write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "<s>"}, "chat_template": [
          {"name": "default", "template": "{{ bos_token }}plain"},
          {"name": "tool_use", "template": "tools"}]})");
  std::unique_ptr<ChatTemplate> chat = ChatTemplate::load(folder.path());
  Json tools = Json::array({Json::object()});
  EXPECT_EQ(chat->render({}), "<s>plain");
  EXPECT_EQ(chat->render({.tools = &tools}), "tools");
  EXPECT_EQ(chat->render({.tools = &tools, .name = "default"}), "<s>plain");
  EXPECT_THROW(chat->render({.name = "rag"}), TextError);

  folder.write("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render({}), "json");
  folder.write("chat_template.jinja", "file");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render({}), "file");
}

TEST(ChatTemplateTest, IsAbsentWhereAFolderHasNone) {
  TemporaryFolder folder;
  EXPECT_EQ(ChatTemplate::load(folder.path()), nullptr);
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>"})");
  EXPECT_EQ(ChatTemplate::load(folder.path()), nullptr);
  folder.write("tokenizer_config.json", "{");
  EXPECT_THROW(ChatTemplate::load(folder.path()), TextError);
}

}  // namespace
}  // namespace mlxcel::testing
