#include "server/responses_input.h"

#include "core/error.h"
#include "text/tool_calls.h"

namespace mlxcel::server {

using http::Failure;
using nlohmann::ordered_json;

namespace {

[[noreturn]] void refuse_item(size_t index, const std::string& why) {
  throw Failure::bad_request(cat("input[", index, "] ", why), "input");
}

std::string text_of(
    const ordered_json& item, size_t index, const char* member) {
  auto found = item.find(member);
  if (found == item.end() || !found->is_string()) {
    refuse_item(index, cat("needs a text named ", member));
  }
  return found->get<std::string>();
}

// The output of a function: a text, or parts that are texts.
std::string output_text(const ordered_json& item, size_t index) {
  auto output = item.find("output");
  if (output != item.end() && output->is_string()) {
    return output->get<std::string>();
  }
  std::string text;
  if (output != item.end() && output->is_array()) {
    for (const ordered_json& part : *output) {
      if (!part.is_object() || !part.contains("text") ||
          !part["text"].is_string()) {
        refuse_item(index, "has an output that is no text");
      }
      text += part["text"].get<std::string>();
    }
    return text;
  }
  refuse_item(index, "needs a text named output");
}

void add_call(const ordered_json& item, size_t index, ordered_json& messages) {
  ordered_json call = {
      {"id", text_of(item, index, "call_id")},
      {"type", "function"},
      {"function",
       {{"name", text_of(item, index, "name")},
        {"arguments", text_of(item, index, "arguments")}}}};
  // Calls of one turn belong to one message.
  if (messages.empty() || messages.back()["role"] != "assistant") {
    messages.push_back({{"role", "assistant"}, {"content", nullptr}});
  }
  messages.back()["tool_calls"].push_back(std::move(call));
}

void add_item(const ordered_json& item, size_t index, ordered_json& messages) {
  if (!item.is_object()) {
    refuse_item(index, "must be an object");
  }
  std::string type = item.contains("type") && item["type"].is_string()
                         ? item["type"].get<std::string>()
                         : "message";
  if (type == "function_call") {
    add_call(item, index, messages);
  } else if (type == "function_call_output") {
    messages.push_back(
        {{"role", "tool"},
         {"tool_call_id", text_of(item, index, "call_id")},
         {"content", output_text(item, index)}});
  } else if (type == "message") {
    std::string role = text_of(item, index, "role");
    if (!item.contains("content")) {
      refuse_item(index, "has no content");
    }
    messages.push_back(
        {{"role", role == "developer" ? "system" : role},
         {"content", item["content"]}});
  } else if (type != "reasoning") {  // thoughts of earlier turns are left out
    refuse_item(
        index,
        cat("has the type '",
            type,
            "'; there are message, function_call, function_call_output and "
            "reasoning"));
  }
}

}  // namespace

ordered_json responses_messages(const ordered_json& body) {
  ordered_json messages = ordered_json::array();
  auto instructions = body.find("instructions");
  if (instructions != body.end() && !instructions->is_null()) {
    if (!instructions->is_string()) {
      Body::refuse("instructions", "must be a string");
    }
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  }
  auto input = body.find("input");
  if (input == body.end() || input->is_null()) {
    Body::refuse("input", "is missing; give a text or a list of items");
  }
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
  } else if (input->is_array()) {
    for (size_t i = 0; i < input->size(); ++i) {
      add_item((*input)[i], i, messages);
    }
  } else {
    Body::refuse("input", "must be a string or an array");
  }
  if (messages.empty()) {
    Body::refuse("input", "is empty");
  }
  return messages;
}

AnswerWishes responses_wishes(
    const ordered_json& body, const ServedModel& model) {
  AnswerWishes wishes = default_wishes(model);
  auto tools = body.find("tools");
  if (tools != body.end() && !tools->is_null() && !tools->is_array()) {
    Body::refuse("tools", "must be an array");
  }
  if (tools != body.end() && !tools->empty()) {
    // The members lie flat here.
    wishes.tools = ordered_json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      const ordered_json& tool = (*tools)[i];
      bool flat = tool.is_object() && tool.contains("type") &&
                  tool["type"] == "function" && tool.contains("name");
      if (!flat) {
        throw Failure::bad_request(
            cat("tools[",
                i,
                "] must be {\"type\": \"function\", \"name\": ..., ",
                "\"parameters\": {...}}; this server runs no tools of its own"),
            "tools");
      }
      ordered_json function = tool;
      function.erase("type");
      wishes.tools.push_back(
          {{"type", "function"}, {"function", std::move(function)}});
    }
    check_tools(wishes.tools);
  }
  auto choice = body.find("tool_choice");
  if (choice != body.end() && !choice->is_null()) {
    if (*choice == "none") {
      wishes.use = ToolUse::none;
    } else if (*choice == "required") {
      wishes.use = ToolUse::required;
    } else if (
        choice->is_object() && choice->contains("type") &&
        (*choice)["type"] == "function" && !function_name(*choice).empty()) {
      wishes.use = ToolUse::required;
      wishes.only_tool = function_name(*choice);
    } else if (*choice != "auto") {
      Body::refuse(
          "tool_choice",
          "must be none, auto, required or {\"type\": \"function\", "
          "\"name\": ...}");
    }
  }
  auto parallel = body.find("parallel_tool_calls");
  if (parallel != body.end() && !parallel->is_null()) {
    if (!parallel->is_boolean()) {
      Body::refuse("parallel_tool_calls", "must be true or false");
    }
    wishes.parallel = parallel->get<bool>();
  }
  auto text = body.find("text");
  if (text != body.end() && text->is_object() && text->contains("format") &&
      !(*text)["format"].is_null()) {
    wishes.schema = read_format((*text)["format"], "text.format");
  }
  if (wishes.schema.is_null() && wishes.tools.is_null()) {
    wishes.grammar = model.defaults.grammar;
  }
  return wishes;
}

}  // namespace mlxcel::server
