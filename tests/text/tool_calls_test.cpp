// Tool calls in the notations of published templates: texts written by hand,
// cut everywhere, and texts drawn from the grammar that forces a call.
#include "text/chat_output.h"

#include "core/error.h"
#include "text/byte_tokenizer.h"
#include "text/output_grammar.h"
#include "text/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace mlxcel {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ChatDelta::Kind;

struct Parsed {
  std::string content, reasoning;
  std::vector<std::pair<std::string, std::string>> calls;
  std::vector<std::string> ids;
  bool operator==(const Parsed&) const = default;
};

void add(const std::vector<ChatDelta>& deltas, Parsed* out) {
  for (const ChatDelta& delta : deltas) {
    switch (delta.kind) {
      case Kind::content:
        out->content += delta.text;
        break;
      case Kind::reasoning:
        out->reasoning += delta.text;
        break;
      case Kind::call:
        EXPECT_EQ(delta.index, int(out->calls.size()));
        out->calls.emplace_back(delta.text, "");
        out->ids.push_back(delta.id);
        break;
      case Kind::arguments:
        ASSERT_EQ(delta.index, int(out->calls.size()) - 1);
        out->calls.back().second += delta.text;
    }
  }
}

Parsed parse(
    const ChatOutputOptions& options, std::string_view text, size_t step) {
  ChatOutput output(options);
  Parsed out;
  for (size_t at = 0; at < text.size(); at += step) {
    add(output.push(text.substr(at, step)), &out);
  }
  add(output.finish(), &out);
  return out;
}

const Json& weather_tools() {
  static const Json tools = Json::parse(R"([
    {"type":"function","function":{"name":"get_weather","parameters":{
      "type":"object","properties":{
        "city":{"type":"string","maxLength":8},"days":{"type":"integer","minimum":1,"maximum":9},
        "unit":{"enum":["C","F"]},
        "tags":{"type":"array","items":{"type":"string","maxLength":3},"maxItems":2}},
      "required":["city","unit"],"additionalProperties":false}}},
    {"type":"function","function":{"name":"ping"}}])");
  return tools;
}

ChatOutputOptions options_of(const char* format) {
  ChatOutputOptions options;
  options.format = tool_format(format);
  EXPECT_NE(options.format, nullptr) << format;
  options.tools = weather_tools();
  return options;
}

struct Case {
  const char* format;
  const char* text;
  const char* content;
  std::vector<std::pair<std::string, std::string>> calls;
};

std::vector<Case> cases() {
  const std::string args = R"({"city": "Oslo", "days": 2})";
  return {
      {"hermes",
       "Let me look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
       "{\"city\": \"Oslo\", \"days\": 2}}\n</tool_call>\n<tool_call>\n"
       "{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
       "Let me look.",
       {{"get_weather", args}, {"ping", "{}"}}},
      // Arguments first, braces and quotes within strings, no closing mark.
      {"hermes",
       "<tool_call>{\"arguments\": {\"city\": \"a}\\\"{\"}, \"name\": "
       "\"get_weather\"}",
       "",
       {{"get_weather", "{\"city\": \"a}\\\"{\"}"}}},
      {"hermes",
       "<tool_call>\n{\"name\": \"ping\"}\n</tool_call>",
       "",
       {{"ping", "{}"}}},
      // Text behind calls keeps the spaces around them.
      {"hermes",
       "text <tool_call>{\"name\": \"ping\"}</tool_call> after ",
       "text  after ",
       {{"ping", "{}"}}},
      {"hermes",
       "a\n<tool_call>{\"name\": \"ping\"}</tool_call>\n"
       "<tool_call>{\"name\": \"ping\"}</tool_call>\n\nb",
       "a\n\n\n\nb",
       {{"ping", "{}"}, {"ping", "{}"}}},
      {"hermes",
       "a <tool_call>{\"name\": \"ping\"}</tool_call> <tool_call> b",
       "a  <tool_call> b",
       {{"ping", "{}"}}},
      // What is no call stays text.
      {"hermes", "a <tool_call> b", "a <tool_call> b", {}},
      {"hermes", "1 <tool 2 < 3", "1 <tool 2 < 3", {}},
      {"qwen3_coder",
       "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\nNo\n"
       "</parameter>\n<parameter=days>\n2\n</parameter>\n<parameter=tags>\n"
       "[\"a\"]\n</parameter>\n</function>\n</tool_call>",
       "",
       {{"get_weather",
         "{\"city\":\"Oslo\\nNo\",\"days\":2,\"tags\":[\"a\"]}"}}},
      {"qwen3_coder", "<function=ping>\n</function>", "", {{"ping", "{}"}}},
      {"seed",
       "<seed:tool_call>\n<function=get_weather>\n<parameter=city>2"
       "</parameter>\n</function>\n</seed:tool_call>",
       "",
       {{"get_weather", "{\"city\":\"2\"}"}}},
      {"llama",
       "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\", "
       "\"days\": 2}}",
       "",
       {{"get_weather", args}}},
      {"llama",
       "<|python_tag|>{\"name\": \"ping\", \"parameters\": {}}",
       "",
       {{"ping", "{}"}}},
      // JSON that names no tool is an answer.
      {"llama",
       "{\"name\": \"Bob\", \"age\": 3}",
       "{\"name\": \"Bob\", \"age\": 3}",
       {}},
      {"llama", "Hi {\"name\": \"ping\"}", "Hi {\"name\": \"ping\"}", {}},
      {"json",
       "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", "
       "\"days\": 2}}",
       "",
       {{"get_weather", args}}},
      {"mistral",
       "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": "
       "\"Oslo\", \"days\": 2}}, {\"name\": \"ping\", \"arguments\": {}}]",
       "",
       {{"get_weather", args}, {"ping", "{}"}}},
      {"mistral_named",
       "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Oslo\", \"days\": 2}"
       "[TOOL_CALLS]ping[ARGS]{}",
       "",
       {{"get_weather", args}, {"ping", "{}"}}},
      {"deepseek",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
       "get_weather\n```json\n{\"city\": \"Oslo\", \"days\": 2}\n```"
       "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping"
       "\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "",
       {{"get_weather", args}, {"ping", "{}"}}},
      {"deepseek_v3_1",
       "ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
       "{\"city\": \"Oslo\", \"days\": "
       "2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "ok",
       {{"get_weather", args}}},
      {"dsml",
       "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n"
       "<｜DSML｜parameter name=\"city\" "
       "string=\"true\">Oslo</｜DSML｜parameter>\n"
       "<｜DSML｜parameter name=\"days\" "
       "string=\"false\">2</｜DSML｜parameter>\n"
       "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       "",
       {{"get_weather", "{\"city\":\"Oslo\",\"days\":2}"}}},
      {"minimax",
       "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter "
       "name=\"city\">Oslo</parameter>\n</invoke>\n<invoke name=\"ping\">\n"
       "</invoke>\n</minimax:tool_call>",
       "",
       {{"get_weather", "{\"city\":\"Oslo\"}"}, {"ping", "{}"}}},
      {"kimi",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
       "<|tool_call_argument_begin|>{\"city\": \"Oslo\", \"days\": 2}"
       "<|tool_call_end|><|tool_calls_section_end|>",
       "",
       {{"get_weather", args}}},
      {"glm",
       "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo"
       "</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n"
       "</tool_call>\n<tool_call>ping\n</tool_call>",
       "",
       {{"get_weather", "{\"city\":\"Oslo\",\"days\":2}"}, {"ping", "{}"}}},
      {"granite",
       "<|tool_call|>[{\"name\": \"ping\", \"arguments\": {}}]",
       "",
       {{"ping", "{}"}}},
      {"functools",
       "functools[{\"name\": \"get_weather\", \"arguments\": {\"city\": "
       "\"Oslo\", \"days\": 2}}]",
       "",
       {{"get_weather", args}}},
      {"nemotron",
       "<TOOLCALL>[{\"name\": \"ping\", \"arguments\": {}}]</TOOLCALL>",
       "",
       {{"ping", "{}"}}},
      {"functionary", "<function=ping>{}</function>", "", {{"ping", "{}"}}},
      {"command_r",
       "Action: ```json\n[\n    {\n        \"tool_name\": \"ping\",\n        "
       "\"parameters\": {}\n    }\n]```",
       "",
       {{"ping", "{}"}}},
      {"command_r7b",
       "<|START_ACTION|>[\n{\"tool_call_id\": \"0\", \"tool_name\": \"ping\", "
       "\"parameters\": {}}\n]<|END_ACTION|>",
       "",
       {{"ping", "{}"}}},
      {"functiongemma",
       "<start_function_call>call:get_weather{city:<escape>O}s:lo<escape>,"
       "days:2,tags:[<escape>a<escape>]}<end_function_call>",
       "",
       {{"get_weather", "{\"city\":\"O}s:lo\",\"days\":2,\"tags\":[\"a\"]}"}}},
      {"gemma4", "<|tool_call>call:ping{}<tool_call|>", "", {{"ping", "{}"}}},
      {"harmony",
       "<|channel|>commentary to=functions.get_weather <|constrain|>json"
       "<|message|>{\"city\": \"Oslo\", \"days\": 2}<|call|>",
       "",
       {{"get_weather", args}}},
  };
}

TEST(ToolCallsTest, ReadsEachNotationHoweverTheTextIsCut) {
  for (const Case& c : cases()) {
    ChatOutputOptions options = options_of(c.format);
    for (size_t step : {1, 2, 3, 5, 7, 11, 1000}) {
      Parsed parsed = parse(options, c.text, step);
      EXPECT_EQ(parsed.content, c.content) << c.text << " by " << step;
      EXPECT_EQ(parsed.calls, c.calls) << c.text << " by " << step;
    }
  }
}

TEST(ToolCallsTest, LeavesOutLaterCallsWhereOneIsAllowed) {
  ChatOutputOptions options = options_of("hermes");
  options.parallel = false;
  for (size_t step : {1, 7, 1000}) {
    Parsed parsed = parse(
        options,
        "a<tool_call>{\"name\": \"ping\"}</tool_call><tool_call>{\"name\": "
        "\"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}</tool_call>",
        step);
    EXPECT_EQ(parsed.content, "a");
    EXPECT_THAT(
        parsed.calls, ::testing::ElementsAre(::testing::Pair("ping", "{}")));
  }
}

TEST(ToolCallsTest, CarriesTheIdsOfNotationsThatHaveThem) {
  Parsed parsed = parse(
      options_of("kimi"),
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.ping:3"
      "<|tool_call_argument_begin|>{}<|tool_call_end|>",
      4);
  EXPECT_THAT(parsed.ids, ::testing::ElementsAre("functions.ping:3"));
  parsed = parse(
      options_of("mistral_named"),
      "[TOOL_CALLS]ping[CALL_ID]abc123[ARGS]{}",
      4);
  EXPECT_THAT(parsed.ids, ::testing::ElementsAre("abc123"));
}

TEST(ToolCallsTest, PassesArgumentsOnAsTheyCome) {
  ChatOutput output(options_of("hermes"));
  Parsed parsed;
  add(output.push(
          "<tool_call>\n{\"name\": \"ping\", \"arguments\": {\"a\": \"bc"),
      &parsed);
  ASSERT_EQ(parsed.calls.size(), 1u);
  EXPECT_EQ(parsed.calls[0].second, "{\"a\": \"bc");
  add(output.push("d\"}"), &parsed);
  EXPECT_EQ(parsed.calls[0].second, "{\"a\": \"bcd\"}");
}

TEST(ToolCallsTest, RandomTextLosesNothing) {
  std::mt19937 random(9);
  const std::string parts[] = {"<tool_call>", "</tool_call>",
                               "{",           "}",
                               "\"name\": ",  "\"ping\"",
                               ",",           "\"arguments\": ",
                               "<function=",  ">",
                               "[",           "]",
                               "call:",       "x",
                               " ",           "\n",
                               "<|channel|>", "<|message|>",
                               "<|end|>",     "[TOOL_CALLS]",
                               "[ARGS]",      "<think>",
                               "</think>",    "<arg_key>",
                               "<escape>",    "<start_function_call>"};
  const char* formats[] = {
      "hermes",
      "qwen3_coder",
      "glm",
      "mistral",
      "mistral_named",
      "json",
      "llama",
      "functiongemma",
      "harmony",
      "kimi",
      "deepseek"};
  for (int i = 0; i < 4000; ++i) {
    std::string text;
    for (size_t n = random() % 16; n > 0; --n) {
      text += parts[random() % std::size(parts)];
    }
    ChatOutputOptions options = options_of(formats[random() % 11]);
    options.prompt = PromptEnd(random() % 2);
    // The cut must not show.
    Parsed whole = parse(options, text, 10000);
    EXPECT_EQ(parse(options, text, 1 + random() % 5), whole)
        << options.format->name << "\n"
        << text;
    // Text without a mark passes unchanged.
    if (text.find_first_of("<[{ \n") == std::string::npos &&
        options.prompt == PromptEnd::answer) {
      EXPECT_EQ(whole.content, text);
    }
  }
}

// What the grammar of a forced call allows is read as a call whose arguments
// fit the tool's schema, in every notation.
TEST(ToolCallsTest, ForcedCallsAlwaysReadAndFit) {
  const char* formats[] = {
      "hermes",        "qwen3_coder", "seed",          "llama",
      "json",          "mistral",     "mistral_named", "deepseek",
      "deepseek_v3_1", "dsml",        "minimax",       "kimi",
      "glm",           "granite",     "functools",     "nemotron",
      "functionary",   "command_r",   "command_r7b",   "functiongemma",
      "gemma4",        "harmony"};
  auto tokenizer = testing::byte_tokenizer(
      {"<end>",
       "[TOOL_CALLS]",
       "[ARGS]",
       "<|message|>",
       "<|end|>",
       "<｜tool▁sep｜>",
       "<|tool_call_begin|>"});
  GrammarCompiler compiler(*tokenizer, {264});
  std::mt19937 random(21);
  for (const char* name : formats) {
    int good = 0, weather = 0;
    for (bool parallel : {false, true}) {
      OutputRules rules;
      rules.format = tool_format(name);
      rules.tools = weather_tools();
      rules.calls_required = true;
      rules.parallel = parallel;
      std::optional<GrammarSource> source = output_grammar(rules, *tokenizer);
      ASSERT_TRUE(source.has_value());
      std::shared_ptr<const Grammar> grammar;
      try {
        grammar = compiler.compile(*source);
      } catch (const TextError& error) {
        FAIL() << name << ": " << error.what() << "\n" << source->text;
      }
      for (int i = 0; i < 25; ++i) {
        auto constraint = grammar->start();
        std::vector<int32_t> ids;
        bool ended = false;
        while (ids.size() < 700 && !ended) {
          std::span<const uint32_t> mask = constraint->mask();
          std::vector<int32_t> next, plain;
          for (int32_t t = 0; t < int32_t(mask.size() * 32); ++t) {
            if ((mask[size_t(t) / 32] >> (t % 32) & 1) != 0) {
              next.push_back(t);
              // Free text would hardly ever find its end by chance.
              if (t == '<' || t == '\n' || t == '"' || t == '}' || t > 263) {
                plain.push_back(t);
              }
            }
          }
          ASSERT_FALSE(next.empty()) << source->text;
          // Now and then a free text is closed as the notation closes it.
          if (next.size() > 120 && random() % 4 == 0) {
            std::string close =
                std::string(*rules.format->after[2] == '\0' ? "\n" : "") +
                rules.format->parameter.close + "\n";
            for (char c : close) {
              int32_t byte = int32_t(uint8_t(c));
              std::span<const uint32_t> now = constraint->mask();
              if ((now[size_t(byte) / 32] >> (byte % 32) & 1) == 0) {
                break;
              }
              constraint->accept(byte);
              ids.push_back(byte);
            }
            continue;
          }
          auto& from = plain.empty() || random() % 3 == 0 ? next : plain;
          int32_t token = from[random() % from.size()];
          constraint->accept(token);
          ended = token == 264 || constraint->finished();
          if (token != 264) {
            ids.push_back(token);
          }
        }
        if (!ended) {
          continue;
        }
        std::string text = tokenizer->decode(ids, false);
        ChatOutputOptions options = options_of(name);
        Parsed parsed = parse(options, text, 1 + random() % 9);
        ASSERT_GE(parsed.calls.size(), 1u) << name << "\n" << text;
        EXPECT_EQ(parsed.content, "") << name << "\n" << text;
        if (!parallel) {
          EXPECT_EQ(parsed.calls.size(), 1u) << text;
        }
        for (const auto& [function, arguments] : parsed.calls) {
          Json value = Json::parse(arguments, nullptr, false);
          ASSERT_TRUE(value.is_object()) << name << "\n"
                                         << text << "\n"
                                         << arguments;
          if (function == "ping") {
            continue;
          }
          ASSERT_EQ(function, "get_weather") << text;
          ++weather;
          ASSERT_TRUE(value.contains("city") && value["city"].is_string())
              << text;
          // The tokens of a byte each: no character has fewer.
          EXPECT_LE(value["city"].get<std::string>().size(), 32u) << text;
          ASSERT_TRUE(value["unit"] == "C" || value["unit"] == "F") << text;
          if (value.contains("days")) {
            EXPECT_GE(value["days"].get<int>(), 1) << text;
            EXPECT_LE(value["days"].get<int>(), 9) << text;
          }
          if (value.contains("tags")) {
            EXPECT_LE(value["tags"].size(), 2u) << text;
          }
        }
        ++good;
      }
    }
    EXPECT_GT(good, 10) << name;
    EXPECT_GT(weather, 3) << name;
  }
}

TEST(ToolFormatsTest, AreFoundByTheTemplatesMarks) {
  auto found = [](const char* source) {
    return std::string(find_tool_format(source)->name);
  };
  EXPECT_EQ(found("... <tool_call>\\n{\"name\": ..."), "hermes");
  EXPECT_EQ(found("<tool_call>\n<function=f>\n<parameter=p>"), "qwen3_coder");
  EXPECT_EQ(found("<tool_call>{name}\n<arg_key>"), "glm");
  EXPECT_EQ(found("[TOOL_CALLS]["), "mistral");
  EXPECT_EQ(found("[TOOL_CALLS]name[ARGS]"), "mistral_named");
  EXPECT_EQ(found("{% for m in messages %}"), "json");
  EXPECT_EQ(found("<|channel|>analysis, commentary"), "harmony");
}

}  // namespace
}  // namespace mlxcel
