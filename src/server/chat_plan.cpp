#include "server/chat_plan.h"

#include "core/error.h"
#include "text/output_grammar.h"
#include "text/tool_calls.h"

namespace mlxcel::server {

using http::Failure;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

// As OpenAI's: letters, digits, '_' and '-'; dots separate namespaces.
bool is_function_name(const std::string& name) {
  return !name.empty() && name.size() <= 128 &&
         name.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
             ".") == std::string::npos;
}

void read_tool_choice(
    Body& body, const ordered_json& raw, AnswerWishes& wishes) {
  const json* choice = body.find("tool_choice");
  if (choice == nullptr) {
    return;
  }
  if (choice->is_string()) {
    const std::string& name = choice->get_ref<const std::string&>();
    if (name == "none") {
      wishes.use = ToolUse::none;
    } else if (name == "required" || name == "any") {
      wishes.use = ToolUse::required;
    } else if (name != "auto") {
      Body::refuse(
          "tool_choice",
          "must be none, auto, required or an object that names a function");
    }
    return;
  }
  const ordered_json& given = raw.at("tool_choice");
  std::string name =
      given.is_object() && given.contains("type") && given["type"] == "function"
          ? function_name(given)
          : std::string();
  if (name.empty()) {
    Body::refuse(
        "tool_choice",
        "must be none, auto, required or {\"type\": \"function\", "
        "\"function\": {\"name\": ...}}");
  }
  wishes.use = ToolUse::required;
  wishes.only_tool = name;
}

ordered_json parse_schema(const ordered_json& value, const char* field) {
  if (value.is_string()) {
    ordered_json parsed =
        ordered_json::parse(value.get<std::string>(), nullptr, false);
    if (parsed.is_discarded()) {
      Body::refuse(field, "is no JSON");
    }
    return parsed;
  }
  return value;
}

// A schema whose fault is the client's to mend.
template <typename Call>
auto as_bad_request(const char* field, Call&& call) {
  try {
    return call();
  } catch (const TextError& error) {
    throw Failure::bad_request(error.what(), field);
  }
}

void compile(
    const std::optional<GrammarSource>& source,
    const char* field,
    const ServedModel& model,
    std::shared_ptr<const Grammar>* out) {
  if (source) {
    *out =
        as_bad_request(field, [&] { return model.grammars->compile(*source); });
  }
}

}  // namespace

void check_tools(const ordered_json& tools) {
  if (!tools.is_array()) {
    Body::refuse("tools", "must be an array");
  }
  std::set<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const ordered_json& tool = tools[i];
    bool function =
        tool.is_object() && tool.contains("type") && tool["type"] == "function";
    if (!function || !tool.contains("function") ||
        !tool["function"].is_object()) {
      throw Failure::bad_request(
          cat("tools[",
              i,
              "] must be {\"type\": \"function\", \"function\": ",
              "{...}}; this server runs no tools of its own"),
          "tools");
    }
    std::string name = function_name(tool);
    if (!is_function_name(name)) {
      throw Failure::bad_request(
          cat("tools[",
              i,
              "].function.name must have letters, digits, '_', ",
              "'-' and '.' only"),
          "tools");
    }
    if (!names.insert(name).second) {
      throw Failure::bad_request(
          cat("tools[", i, "] repeats the function ", name), "tools");
    }
    auto parameters = tool["function"].find("parameters");
    if (parameters != tool["function"].end() && !parameters->is_null() &&
        !parameters->is_object()) {
      throw Failure::bad_request(
          cat("tools[", i, "].function.parameters must be a JSON schema"),
          "tools");
    }
  }
}

ordered_json read_format(const ordered_json& format, const std::string& name) {
  if (!format.is_object() || !format.contains("type") ||
      !format["type"].is_string()) {
    Body::refuse(name, "must be an object with a \"type\"");
  }
  std::string type = format["type"].get<std::string>();
  if (type == "text") {
    return nullptr;
  }
  if (type == "json_object") {
    return format.contains("schema") && !format["schema"].is_null()
               ? format["schema"]
               : ordered_json({{"type", "object"}});
  }
  if (type != "json_schema") {
    Body::refuse(
        name,
        cat("has the type '",
            type,
            "'; there are text, json_object and json_schema"));
  }
  const ordered_json& inner =
      format.contains("json_schema") ? format["json_schema"] : format;
  if (!inner.is_object() || !inner.contains("schema") ||
      inner["schema"].is_null()) {
    Body::refuse(name, "has no \"schema\"");
  }
  return inner["schema"];
}

AnswerWishes default_wishes(const ServedModel& model) {
  AnswerWishes wishes;
  wishes.reasoning =
      model.answers.parse ? model.answers.reasoning : ReasoningFormat::none;
  wishes.reasoning_budget = model.answers.reasoning_budget;
  return wishes;
}

AnswerWishes read_answer_wishes(
    Body& body, const ordered_json& raw, const ServedModel& model) {
  AnswerWishes wishes = default_wishes(model);
  wishes.reasoning_budget =
      body.integer("reasoning_budget", wishes.reasoning_budget, -1);
  if (std::optional<std::string> format = body.text("reasoning_format")) {
    try {
      wishes.reasoning = reasoning_format(*format);
    } catch (const UsageError& error) {
      Body::refuse("reasoning_format", error.why());
    }
  }
  if (const json* tools = body.find("tools"); tools && !tools->empty()) {
    wishes.tools = raw.at("tools");
    check_tools(wishes.tools);
  }
  read_tool_choice(body, raw, wishes);
  wishes.parallel = body.flag("parallel_tool_calls", true);
  if (body.find("response_format") != nullptr) {
    wishes.schema = read_format(raw.at("response_format"), "response_format");
  }
  if (body.find("json_schema") != nullptr) {
    if (!wishes.schema.is_null()) {
      Body::refuse("json_schema", "repeats response_format; leave one out");
    }
    wishes.schema = parse_schema(raw.at("json_schema"), "json_schema");
  }
  if (std::optional<std::string> grammar = body.text("grammar");
      grammar && !grammar->empty()) {
    if (!wishes.schema.is_null() || wishes.use == ToolUse::required) {
      Body::refuse(
          "grammar", "cannot be joined with a schema or a forced call");
    }
    wishes.grammar = text_grammar(*grammar);
  } else if (wishes.schema.is_null() && wishes.tools.is_null()) {
    wishes.grammar = model.defaults.grammar;
  }
  return wishes;
}

std::shared_ptr<const Grammar> read_grammar(
    Body& body, const ordered_json& raw, const ServedModel& model) {
  std::shared_ptr<const Grammar> out;
  ordered_json format =
      body.find("response_format") != nullptr
          ? read_format(raw.at("response_format"), "response_format")
          : ordered_json();
  bool schema = body.find("json_schema") != nullptr;
  std::string grammar = body.text("grammar").value_or("");
  if (schema && !format.is_null()) {
    Body::refuse("json_schema", "repeats response_format; leave one out");
  }
  if (!grammar.empty() && (schema || !format.is_null())) {
    Body::refuse(
        "grammar", "cannot be joined with json_schema or response_format");
  }
  if (schema) {
    const ordered_json& given = raw.at("json_schema");
    std::string text =
        given.is_string() ? given.get<std::string>() : given.dump();
    compile(json_schema_grammar(text), "json_schema", model, &out);
  } else if (!format.is_null()) {
    GrammarSource source{GrammarKind::json_schema, format.dump()};
    compile(source, "response_format", model, &out);
  } else if (!grammar.empty()) {
    compile(text_grammar(grammar), "grammar", model, &out);
  } else {
    compile(model.defaults.grammar, "grammar", model, &out);
  }
  return out;
}

namespace {

// The functions in words, for templates that have no place for them.
std::string tool_instructions(const ordered_json& tools) {
  std::string out = "You can call these functions:\n";
  for (const ordered_json& tool : tools) {
    out += tool.at("function")
               .dump(-1, ' ', false, ordered_json::error_handler_t::replace) +
           "\n";
  }
  return out +
         "To call one, answer with JSON alone: {\"name\": NAME, "
         "\"arguments\": {...}}";
}

void put_in_front(ordered_json& messages, const std::string& text) {
  bool system = !messages.empty() && messages[0]["role"] == "system" &&
                messages[0]["content"].is_string();
  if (system) {
    messages[0]["content"] =
        messages[0]["content"].get<std::string>() + "\n\n" + text;
  } else {
    messages.insert(
        messages.begin(),
        ordered_json({{"role", "system"}, {"content", text}}));
  }
}

// Calls and results as plain text, where the template knows neither.
void spell_out_calls(ordered_json& messages) {
  for (ordered_json& message : messages) {
    if (message.contains("tool_calls")) {
      std::string text = message["content"].is_string()
                             ? message["content"].get<std::string>()
                             : std::string();
      for (const ordered_json& call : message["tool_calls"]) {
        ordered_json arguments = call.at("function").at("arguments");
        text += cat(
            text.empty() ? "" : "\n",
            ordered_json({{"name", function_name(call)},
                          {"arguments", std::move(arguments)}})
                .dump(-1, ' ', false, ordered_json::error_handler_t::replace));
      }
      message["content"] = text;
      message.erase("tool_calls");
    } else if (message["role"] == "tool") {
      message["role"] = "user";
      message["content"] = cat(
          "Result: ",
          message["content"].is_string() ? message["content"].get<std::string>()
                                         : std::string());
    }
  }
}

// Arguments of earlier calls as objects, which most templates write out
// themselves, or as text.
void set_arguments(ordered_json& messages, bool objects) {
  for (size_t i = 0; i < messages.size(); ++i) {
    ordered_json& message = messages[i];
    auto calls = message.find("tool_calls");
    if (calls == message.end()) {
      continue;
    }
    if (calls->is_null() || (calls->is_array() && calls->empty())) {
      message.erase("tool_calls");
      if (message["content"].is_null()) {
        message["content"] = "";
      }
      continue;
    }
    // Templates search it for marks, which only a text can be.
    if (message["content"].is_null()) {
      message["content"] = "";
    }
    if (!calls->is_array()) {
      throw Failure::bad_request(
          cat("messages[", i, "].tool_calls must be an array"), "messages");
    }
    for (ordered_json& call : *calls) {
      if (function_name(call).empty() || !call.contains("function")) {
        throw Failure::bad_request(
            cat("messages[",
                i,
                "].tool_calls must hold {\"type\": ",
                "\"function\", \"function\": {\"name\": ...}}"),
            "messages");
      }
      ordered_json& arguments = call["function"]["arguments"];
      if (objects && arguments.is_string()) {
        ordered_json parsed =
            ordered_json::parse(arguments.get<std::string>(), nullptr, false);
        if (!parsed.is_discarded()) {
          arguments = std::move(parsed);
        }
      } else if (!objects && !arguments.is_string()) {
        arguments = arguments.is_null() ? "{}" : arguments.dump();
      }
      if (arguments.is_null()) {
        arguments = ordered_json::object();
      }
    }
  }
}

// What `render` makes of the conversation.
template <typename Render>
auto render_plan(ChatInput& input, Render&& render) {
  set_arguments(input.messages, true);
  ChatInput texts = input;
  try {
    return render(input);
  } catch (const TextError&) {
    // Templates that join the arguments to other text need them as text.
    set_arguments(texts.messages, false);
    if (texts.messages == input.messages) {
      throw;
    }
  }
  return render(texts);
}

const std::string& source_of(const ServedModel& model, bool tools) {
  static const std::string no_source;
  return model.chat_template ? model.chat_template->source(tools) : no_source;
}

// Gives the functions (null: none) to the template or, where it knows none, to
// the model in words; and the notation that calls come in.
const ToolFormat* place_tools(
    ChatInput& input, const ordered_json& tools, const std::string& source) {
  const ToolFormat* format = find_tool_format(source);
  if (template_knows_tools(source)) {
    input.tools = tools;
    return format;
  }
  set_arguments(input.messages, true);
  spell_out_calls(input.messages);
  if (tools.is_null()) {
    return format;
  }
  put_in_front(input.messages, tool_instructions(tools));
  return format->body == CallBody::harmony ? format : tool_format("json");
}

}  // namespace

std::string conversation_text(
    ChatInput input, const ordered_json& tools, const ServedModel& model) {
  place_tools(input, tools, source_of(model, !tools.is_null()));
  return render_plan(input, [&](const ChatInput& placed) {
    return render_chat(placed, model);
  });
}

ChatPlan plan_chat(
    ChatInput input, const AnswerWishes& wishes, const ServedModel& model) {
  bool tools = wishes.tools.is_array() && !wishes.tools.empty() &&
               wishes.use != ToolUse::none;
  if (wishes.use == ToolUse::required && !tools) {
    Body::refuse("tool_choice", "asks for a call, but there are no tools");
  }
  ordered_json callable = tools ? wishes.tools : ordered_json(nullptr);
  if (!wishes.only_tool.empty()) {
    callable = ordered_json::array();
    for (const ordered_json& tool : wishes.tools) {
      if (function_name(tool) == wishes.only_tool) {
        callable.push_back(tool);
      }
    }
    if (callable.empty()) {
      Body::refuse(
          "tool_choice", cat("names ", wishes.only_tool, ", which is no tool"));
    }
  }

  const std::string& source = source_of(model, tools);
  ChatPlan plan;
  plan.output.marks = find_reasoning_marks(source);
  plan.output.reasoning = wishes.reasoning;
  const ToolFormat* format =
      place_tools(input, tools ? wishes.tools : ordered_json(nullptr), source);
  plan.prompt = render_plan(input, [&](const ChatInput& placed) {
    return chat_prompt(placed, model);
  });
  plan.output.prompt = end_of_prompt(plan.prompt.text, plan.output.marks);
  bool reads = tools || format->body == CallBody::harmony;
  if (reads && model.answers.parse) {
    plan.output.format = format;
    plan.output.tools = callable;
    plan.output.parallel = wishes.parallel;
  }
  plan.kept_special =
      tokens_of_marks(*format, plan.output.marks, *model.tokenizer);
  // Some templates open a thought and leave it to the model to close it.
  bool thinks = plan.output.prompt == PromptEnd::thinking ||
                source.find(plan.output.marks.close) != std::string::npos;
  if (thinks) {
    plan.thoughts = {
        wishes.reasoning_budget,
        plan.output.marks,
        plan.output.prompt == PromptEnd::thinking};
  }

  if (wishes.grammar) {
    compile(wishes.grammar, "grammar", model, &plan.grammar);
    if (plan.output.prompt == PromptEnd::thinking) {
      GrammarSource whole = as_bad_request("grammar", [&] {
        return grammar_behind_thought(
            *wishes.grammar, plan.output.marks, *model.tokenizer);
      });
      compile(whole, "grammar", model, &plan.grammar);
    }
    return plan;
  }
  OutputRules rules;
  rules.format = format;
  rules.tools = callable;
  rules.calls_required = wishes.use == ToolUse::required;
  rules.parallel = wishes.parallel && wishes.only_tool.empty();
  rules.schema = wishes.schema;
  rules.marks = plan.output.marks;
  rules.prompt = plan.output.prompt;
  rules.may_think =
      thinks && plan.prompt.text.find(
                    plan.output.marks.close,
                    plan.prompt.text.size() -
                        std::min<size_t>(plan.prompt.text.size(), 64)) ==
                    std::string::npos;
  const char* field = rules.calls_required ? "tools" : "response_format";
  std::optional<GrammarSource> grammar = as_bad_request(
      field, [&] { return output_grammar(rules, *model.tokenizer); });
  compile(grammar, field, model, &plan.grammar);
  return plan;
}

void apply_plan(const ChatPlan& plan, GenerationRequest& generation) {
  generation.prompt = plan.prompt.tokens;
  generation.grammar = plan.grammar;
  generation.kept_special = plan.kept_special;
  generation.thoughts = plan.thoughts;
}

}  // namespace mlxcel::server
