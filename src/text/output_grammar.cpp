#include "text/output_grammar.h"

#include "core/error.h"
#include "text/gbnf.h"
#include "text/held_text.h"
#include "text/json_schema.h"
#include "text/tokenizer.h"
#include "text/tool_calls.h"

#include <algorithm>

namespace mlxcel {

namespace {

using Json = nlohmann::ordered_json;

std::string dumped(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// For a regular expression between slashes.
std::string escape_slashes(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\' && i + 1 < pattern.size()) {
      out += pattern[i++];
    } else if (pattern[i] == '/') {
      out += '\\';
    }
    out += pattern[i];
  }
  return out;
}

class Writer {
 public:
  Writer(const OutputRules& rules, const Tokenizer& tokenizer)
      : rules_(rules), tokenizer_(tokenizer) {}

  // The rest of a thought, then the answer, which is a rule.
  std::string behind_thought(const std::string& answer) {
    add("start", text_until(rules_.marks.close) + spaces() + "answer");
    add("answer", answer);
    return text_;
  }

  std::string run() {
    std::string answer;
    if (!rules_.tools.is_null()) {
      answer = calls();
    }
    if (!rules_.schema.is_null() && !rules_.calls_required) {
      std::string json = "%json " + dumped(prepare_json_schema(rules_.schema));
      answer = answer.empty() ? json : cat("(", answer, " | ", json, ")");
    }
    add("start", thoughts() + answer);
    return text_;
  }

 private:
  void add(const std::string& name, const std::string& rule) {
    text_ += cat(name, ": ", rule, "\n");
  }
  std::string fresh(const char* name) {
    return cat(name, "_", count_++);
  }

  // Text as it is: special tokens by their ids, the rest as a string.
  std::string literal(std::string_view text) const {
    std::string out;
    size_t at = 0;
    for (int32_t id : tokenizer_.encode(text, false)) {
      std::string name = tokenizer_.token_text(id);
      size_t found = name.empty() || !tokenizer_.is_special(id)
                         ? std::string_view::npos
                         : text.find(name, at);
      if (found != std::string_view::npos) {
        append(text.substr(at, found - at), &out);
        out += cat(" <[", id, "]>");
        at = found + name.size();
      }
    }
    append(text.substr(at), &out);
    return out;
  }
  static void append(std::string_view text, std::string* out) {
    if (!text.empty()) {
      *out += cat(" ", dumped(Json(text)));
    }
  }

  // A regular expression for what the schema says of a text as a whole.
  static std::string text_pattern(const Json& schema) {
    if (schema.is_object() && schema.contains("pattern")) {
      std::string pattern = schema["pattern"].get<std::string>();
      bool begins = pattern.starts_with("^");
      bool ends = pattern.ends_with("$") && !pattern.ends_with("\\$");
      pattern = pattern.substr(begins, pattern.size() - begins - ends);
      return cat(
          "/",
          begins ? "" : "(?s:.*)",
          "(",
          escape_slashes(pattern),
          ")",
          ends ? "" : "(?s:.*)",
          "/");
    }
    if (schema.is_object() &&
        (schema.contains("minLength") || schema.contains("maxLength"))) {
      return cat(
          "/(?s:.{",
          schema.value("minLength", int64_t(0)),
          ",",
          schema.contains("maxLength")
              ? std::to_string(schema["maxLength"].get<int64_t>())
              : std::string(),
          "})/");
    }
    return "/(?s:.*)/";
  }

  // Text that fits the schema up to the mark, and the mark.
  std::string text_until(std::string_view mark, const Json& schema = {}) {
    std::string name = fresh("text");
    std::string end = literal(mark);
    std::string pattern = text_pattern(schema);
    if (end.find("<[") != std::string::npos) {
      // A special token ends the text by itself.
      add(name, pattern);
      return cat(name, end);
    }
    add(cat(name, "[suffix=", dumped(Json(mark)), "]"), pattern);
    return name;
  }

  std::string thoughts() {
    if (rules_.format != nullptr && rules_.format->body == CallBody::harmony) {
      return cat(
          "(",
          literal("<|channel|>analysis<|message|>"),
          " ",
          text_until("<|end|>"),
          literal("<|start|>assistant"),
          ")? ",
          rules_.schema.is_null() || rules_.calls_required
              ? ""
              : cat("(", literal("<|channel|>final<|message|>"), ")? "));
    }
    std::string_view open = without_end_space(rules_.marks.open);
    if (rules_.prompt == PromptEnd::thinking) {
      return text_until(rules_.marks.close) + spaces();
    }
    if (!rules_.may_think || open.empty()) {
      return {};
    }
    return cat(
        "(",
        literal(open),
        " ",
        text_until(rules_.marks.close),
        spaces(),
        ")? ");
  }
  static std::string spaces() {
    return " /[ \\n]{1,4}/? ";
  }

  std::string calls() {
    const ToolFormat& format = *rules_.format;
    std::string one;
    for (const Json& tool : rules_.tools) {
      std::string rule = fresh("call");
      try {
        add(rule, call(tool));
      } catch (const TextError& error) {
        throw TextError(
            cat("the parameters of the tool ",
                function_name(tool),
                " cannot be used"),
            error.why(),
            "change them, or do not force a call");
      }
      one += cat(one.empty() ? "(" : " | ", rule);
    }
    one += ")";
    bool lines = format.body == CallBody::parameters;
    if (format.body == CallBody::array) {
      std::string more =
          rules_.parallel ? cat(" (\", \" ", one, ")*") : std::string();
      return cat(
          literal(format.call.open),
          " \"[\" ",
          one,
          more,
          " \"]\"",
          literal(format.call.close));
    }
    bool sectioned = *format.section.close != '\0';
    std::string between =
        lines || (!sectioned && format.body == CallBody::object) ? " \"\\n\" "
                                                                 : " ";
    std::string all = one;
    // JSON alone: a second object would be no JSON any more.
    if (rules_.parallel && *format.call.open != '\0' &&
        format.body != CallBody::harmony) {
      all = cat(one, " (", between, one, ")*");
    }
    if (sectioned) {
      std::string line = lines ? " \"\\n\" " : " ";
      all =
          cat(literal(format.section.open),
              line,
              all,
              line,
              literal(format.section.close));
    }
    return all;
  }

  std::string call(const Json& tool) {
    const ToolFormat& format = *rules_.format;
    std::string name = function_name(tool);
    Json schema = prepare_json_schema(function_parameters(tool));
    std::string json = "%json " + dumped(schema);
    switch (format.body) {
      case CallBody::object:
        return cat(
            literal(format.call.open),
            object(name, json),
            literal(format.call.close));
      case CallBody::array:
        return object(name, json);
      case CallBody::named_json: {
        std::string number =
            format.name == std::string_view("kimi") ? " /:[0-9]{1,2}/" : "";
        return cat(
            literal(format.call.open),
            literal(name),
            number,
            literal(format.after[0]),
            " ",
            json,
            literal(format.call.close));
      }
      case CallBody::harmony:  // what closes it is an end token
        return cat(
            literal(cat(format.call.open, name, format.after[0])), " ", json);
      case CallBody::parameters:
        return parameters(name, schema);
      case CallBody::braces:
        return cat(
            literal(cat(format.call.open, name)),
            " ",
            braces(schema, schema),
            literal(format.call.close));
    }
    return {};
  }

  std::string object(const std::string& name, const std::string& json) const {
    const ToolFormat& format = *rules_.format;
    return cat(
        literal(
            cat("{\"",
                format.keys[0],
                "\": ",
                dumped(Json(name)),
                ", \"",
                format.keys[1],
                "\": ")),
        " ",
        json,
        " \"}\"");
  }

  // The members of an object: those that are required, in their order, and
  // others beside them. `write(key, schema)` gives one's rule.
  template <typename Write>
  static std::vector<std::pair<bool, std::string>> members(
      const Json& schema, Write&& write) {
    std::vector<std::pair<bool, std::string>> out;
    auto properties = schema.find("properties");
    if (properties == schema.end()) {
      return out;
    }
    auto required = schema.find("required");
    for (const auto& [key, value] : properties->items()) {
      bool must =
          required != schema.end() &&
          std::find(required->begin(), required->end(), key) != required->end();
      out.emplace_back(must, write(key, value));
    }
    return out;
  }

  static bool is_text(const Json& schema) {
    return schema.is_object() && schema.contains("type") &&
           schema["type"] == "string";
  }

  // Alternatives of an enumeration of strings, "" when it is none.
  std::string choices(const Json& schema) const {
    if (!schema.is_object() || !schema.contains("enum")) {
      return {};
    }
    std::string out;
    for (const Json& value : schema["enum"]) {
      if (!value.is_string()) {
        return {};
      }
      out += cat(out.empty() ? "(" : " | ", dumped(value));
    }
    return out + ")";
  }

  static Json with_definitions(Json schema, const Json& root) {
    if (schema.is_object()) {
      if (root.contains("$defs")) {
        schema["$defs"] = root["$defs"];
      }
      schema["x-guidance"] = root["x-guidance"];
    }
    return schema;
  }

  std::string parameters(const std::string& name, const Json& schema) {
    const ToolFormat& format = *rules_.format;
    bool lines = *format.after[2] == '\0';  // a value has its own lines
    std::string pad = lines ? "\n" : "";
    std::string out = literal(
        cat(format.call.open,
            name,
            format.after[0],
            std::string_view(format.after[0]).ends_with("\n") ? "" : "\n"));
    auto write = [&](const std::string& key, const Json& value) {
      std::string choice = choices(value);
      bool text = is_text(value) || !choice.empty();
      std::string between =
          format.name == std::string_view("dsml")
              ? cat(" string=\"", text ? "true" : "false", "\"")
          : *format.after[2] == '<' ? "\n"
                                    : "";
      std::string end = cat(pad, format.parameter.close, "\n");
      return cat(
          literal(
              cat(format.parameter.open,
                  key,
                  format.after[1],
                  between,
                  format.after[2],
                  pad)),
          " ",
          !choice.empty() ? choice + literal(end)
          : text          ? text_until(end, value)
                          : cat("%json ",
                       dumped(with_definitions(value, schema)),
                       literal(end)));
    };
    for (const auto& [must, rule] : members(schema, write)) {
      out += must ? cat(" ", rule) : cat(" (", rule, ")?");
    }
    return cat(out, literal(format.call.close));
  }

  // Gemma's notation, for what it can say of the schema.
  std::string braces(const Json& schema, const Json& root) {
    const ToolFormat& format = *rules_.format;
    std::string quote = literal(format.parameter.open);
    if (std::string choice = choices(schema); !choice.empty()) {
      return cat(quote, " ", choice, quote);
    }
    if (is_text(schema)) {
      return cat(quote, " ", text_until(format.parameter.close, schema));
    }
    bool object = schema.is_object() && schema.contains("properties");
    if (object) {
      return cat("\"{\" ", braces_members(schema, root), " \"}\"");
    }
    if (schema.is_object() && schema.contains("type") &&
        schema["type"] == "object") {
      return "\"{}\"";
    }
    if (schema.is_object() && schema.contains("type") &&
        schema["type"] == "array" && schema.contains("items")) {
      std::string item = fresh("item");
      add(item, braces(schema["items"], root));
      int64_t least = schema.value("minItems", int64_t(0));
      int64_t most = schema.value("maxItems", int64_t(-1));
      std::string more =
          cat(" (\",\" ",
              item,
              "){",
              std::max<int64_t>(least - 1, 0),
              ",",
              most > 0 ? cat(most - 1) : std::string(),
              "}");
      std::string list = most == 0 ? std::string("\"\"") : item + more;
      return cat("\"[\" (", list, least == 0 ? ")?" : ")", " \"]\"");
    }
    if (schema.is_object() && schema.contains("type") &&
        schema["type"].is_string()) {
      return "%json " + dumped(with_definitions(schema, root));
    }
    throw TextError(
        "the parameters cannot be used",
        "this model's notation of calls has only plain types: string, number, "
        "integer, boolean, null, object and array",
        "");
  }

  // Members with commas between those that are there.
  std::string braces_members(const Json& schema, const Json& root) {
    std::vector<std::pair<bool, std::string>> rules =
        members(schema, [&](const std::string& key, const Json& value) {
          return cat(literal(key + ":"), " ", braces(value, root));
        });
    // rest(i, first): members from i on; `first`: none came before.
    std::string rest[2] = {"\"\"", "\"\""};
    for (size_t i = rules.size(); i-- > 0;) {
      std::string with[2];
      for (bool first : {false, true}) {
        std::string member =
            cat(first ? "" : "\",\" ", rules[i].second, " ", rest[0]);
        with[first] =
            rules[i].first ? member : cat("(", member, " | ", rest[first], ")");
      }
      for (bool first : {false, true}) {
        rest[first] = fresh("members");
        add(rest[first], with[first]);
      }
    }
    return rest[1];
  }

  const OutputRules& rules_;
  const Tokenizer& tokenizer_;
  std::string text_;
  int count_ = 0;
};

}  // namespace

std::optional<GrammarSource> output_grammar(
    const OutputRules& rules, const Tokenizer& tokenizer) {
  bool calls = !rules.tools.is_null() && !rules.tools.empty();
  if (rules.schema.is_null() && (!calls || !rules.calls_required)) {
    return std::nullopt;
  }
  bool harmony =
      rules.format != nullptr && rules.format->body == CallBody::harmony;
  if (!calls && !harmony && !rules.may_think &&
      rules.prompt == PromptEnd::answer) {
    return GrammarSource{GrammarKind::json_schema, dumped(rules.schema)};
  }
  OutputRules used = rules;
  used.tools = calls ? rules.tools : Json(nullptr);
  return GrammarSource{GrammarKind::lark, Writer(used, tokenizer).run()};
}

GrammarSource grammar_behind_thought(
    const GrammarSource& answer,
    const Marks& reasoning,
    const Tokenizer& tokenizer) {
  std::string rule;
  switch (answer.kind) {
    case GrammarKind::json_schema:
      rule = "%json " + dumped(parse_json_schema(answer.text));
      break;
    case GrammarKind::regex:
      rule = cat("/", escape_slashes(answer.text), "/");
      break;
    case GrammarKind::gbnf:
      rule = cat("%lark {\n", gbnf_to_lark(answer.text), "\n}");
      break;
    case GrammarKind::lark:
      rule = cat("%lark {\n", answer.text, "\n}");
      break;
  }
  OutputRules rules;
  rules.marks = reasoning;
  return {GrammarKind::lark, Writer(rules, tokenizer).behind_thought(rule)};
}

}  // namespace mlxcel
