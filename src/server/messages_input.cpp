#include "server/messages_input.h"

#include "core/error.h"

namespace mlxcel::server {

using http::Failure;
using nlohmann::ordered_json;

namespace {

[[noreturn]] void refuse_message(size_t index, const std::string& why) {
  throw Failure::bad_request(cat("messages[", index, "] ", why), "messages");
}

std::string member(const ordered_json& block, const char* name) {
  auto found = block.find(name);
  return found != block.end() && found->is_string() ? found->get<std::string>()
                                                    : std::string();
}

// A text, or blocks of text.
std::string plain_text(const ordered_json& value, const std::string& where) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  std::string text;
  if (value.is_null()) {
    return text;
  }
  if (!value.is_array()) {
    throw Failure::bad_request(
        cat(where, " must be a text or an array of blocks"), "messages");
  }
  for (const ordered_json& block : value) {
    if (!block.is_object() || member(block, "type") != "text" ||
        !block.contains("text") || !block["text"].is_string()) {
      throw Failure::bad_request(
          cat(where, " may hold blocks of type text only"), "messages");
    }
    text += cat(text.empty() ? "" : "\n", block["text"].get<std::string>());
  }
  return text;
}

class Turn {
 public:
  Turn(const ordered_json& message, size_t index, const ServedModel& model)
      : index_(index), model_(model) {
    role_ = message.is_object() ? member(message, "role") : std::string();
    if (role_ != "user" && role_ != "assistant" && role_ != "system") {
      refuse_message(index, "needs the role user or assistant");
    }
    auto content = message.find("content");
    if (content == message.end()) {
      refuse_message(index, "has no content");
    }
    if (content->is_string()) {
      text_ = content->get<std::string>();
    } else if (content->is_array()) {
      for (const ordered_json& block : *content) {
        add(block);
      }
    } else {
      refuse_message(index, "has a content that is neither text nor blocks");
    }
  }

  void write(ordered_json& messages) {
    for (ordered_json& result : results_) {
      messages.push_back(std::move(result));
    }
    if (text_.empty() && calls_.empty() && !results_.empty()) {
      return;
    }
    ordered_json message = {{"role", role_}, {"content", text_}};
    if (!thinking_.empty()) {
      message["reasoning_content"] = thinking_;
    }
    if (!calls_.empty()) {
      message["tool_calls"] = std::move(calls_);
      if (text_.empty()) {
        message["content"] = nullptr;
      }
    }
    messages.push_back(std::move(message));
  }

 private:
  void add(const ordered_json& block) {
    std::string type = block.is_object() ? member(block, "type") : "";
    if (type == "text") {
      text_ += cat(text_.empty() ? "" : "\n", member(block, "text"));
    } else if (type == "thinking") {
      thinking_ += member(block, "thinking");
    } else if (type == "tool_use") {
      if (member(block, "name").empty()) {
        refuse_message(index_, "has a tool_use block without a name");
      }
      calls_.push_back(
          {{"id", member(block, "id")},
           {"type", "function"},
           {"function",
            {{"name", member(block, "name")},
             {"arguments",
              block.contains("input") ? block["input"]
                                      : ordered_json::object()}}}});
    } else if (type == "tool_result") {
      std::string where = cat("messages[", index_, "].tool_result");
      std::string content =
          block.contains("content") ? plain_text(block["content"], where) : "";
      results_.push_back(
          {{"role", "tool"},
           {"tool_call_id", member(block, "tool_use_id")},
           {"content", content}});
    } else if (type == "document") {
      refuse_message(
          index_,
          "has a document, which this server does not read; give its content "
          "as a text block");
    } else if (type == "image") {
      refuse_message(
          index_,
          cat("has an image, but model ",
              model_.folder.string(),
              " was loaded without a vision tower (text-only checkpoint)"));
    } else if (type != "redacted_thinking") {
      refuse_message(index_, cat("has a block of the type '", type, "'"));
    }
  }

  size_t index_;
  const ServedModel& model_;
  std::string role_, text_, thinking_;
  ordered_json calls_ = ordered_json::array();
  std::vector<ordered_json> results_;
};

}  // namespace

ordered_json messages_conversation(
    const ordered_json& body, const ServedModel& model) {
  ordered_json messages = ordered_json::array();
  if (auto system = body.find("system"); system != body.end()) {
    std::string text = plain_text(*system, "system");
    if (!text.empty()) {
      messages.push_back({{"role", "system"}, {"content", text}});
    }
  }
  auto given = body.find("messages");
  if (given == body.end() || !given->is_array() || given->empty()) {
    Body::refuse("messages", "must be an array with at least one message");
  }
  for (size_t i = 0; i < given->size(); ++i) {
    Turn((*given)[i], i, model).write(messages);
  }
  return messages;
}

AnswerWishes messages_wishes(
    const ordered_json& body, const ServedModel& model) {
  AnswerWishes wishes = default_wishes(model);
  auto tools = body.find("tools");
  if (tools != body.end() && !tools->is_null() && !tools->is_array()) {
    Body::refuse("tools", "must be an array");
  }
  if (tools != body.end() && !tools->empty()) {
    wishes.tools = ordered_json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      const ordered_json& tool = (*tools)[i];
      if (!tool.is_object() ||
          (tool.contains("type") && tool["type"] != "custom" &&
           !tool["type"].is_null())) {
        throw Failure::bad_request(
            cat("tools[",
                i,
                "] is no tool of the client; this server runs no ",
                "tools of its own"),
            "tools");
      }
      ordered_json function = {{"name", member(tool, "name")}};
      if (tool.contains("description")) {
        function["description"] = tool["description"];
      }
      function["parameters"] = tool.contains("input_schema")
                                   ? tool["input_schema"]
                                   : ordered_json({{"type", "object"}});
      wishes.tools.push_back(
          {{"type", "function"}, {"function", std::move(function)}});
    }
    check_tools(wishes.tools);
  }
  auto choice = body.find("tool_choice");
  if (choice != body.end() && !choice->is_null()) {
    std::string type = choice->is_object() ? member(*choice, "type") : "";
    if (type == "none") {
      wishes.use = ToolUse::none;
    } else if (type == "any") {
      wishes.use = ToolUse::required;
    } else if (type == "tool" && !member(*choice, "name").empty()) {
      wishes.use = ToolUse::required;
      wishes.only_tool = member(*choice, "name");
    } else if (type != "auto") {
      Body::refuse(
          "tool_choice", "must be of the type auto, any, tool or none");
    }
    auto single = choice->find("disable_parallel_tool_use");
    if (single != choice->end() && !single->is_null()) {
      if (!single->is_boolean()) {
        Body::refuse("disable_parallel_tool_use", "must be true or false");
      }
      wishes.parallel = !single->get<bool>();
    }
  }
  auto output = body.find("output_config");
  if (output != body.end() && output->is_object() &&
      output->contains("format") && !(*output)["format"].is_null()) {
    wishes.schema = read_format((*output)["format"], "output_config.format");
  }
  if (wishes.schema.is_null() && wishes.tools.is_null()) {
    wishes.grammar = model.defaults.grammar;
  }
  return wishes;
}

}  // namespace mlxcel::server
