// What tools say of their functions and arguments.
#include "text/held_text.h"
#include "text/tool_calls.h"

#include <algorithm>

namespace mlxcel {

using Json = nlohmann::ordered_json;

std::string function_name(const Json& tool) {
  auto function = tool.find("function");
  const Json& from =
      tool.is_object() && function != tool.end() ? *function : tool;
  if (!from.is_object()) {
    return {};
  }
  auto name = from.find("name");
  return name != from.end() && name->is_string() ? name->get<std::string>()
                                                 : std::string();
}

Json function_parameters(const Json& tool) {
  auto function = tool.find("function");
  const Json& from = function != tool.end() ? *function : tool;
  auto parameters = from.find("parameters");
  return parameters != from.end() && parameters->is_object() &&
                 !parameters->empty()
             ? *parameters
             : Json({{"type", "object"}});
}

const Json* argument_schema(
    const Json& tools, std::string_view function, std::string_view argument) {
  for (const Json& tool : tools) {
    if (!tool.is_object() || function_name(tool) != function) {
      continue;
    }
    auto inner = tool.find("function");
    const Json& from = inner != tool.end() ? *inner : tool;
    auto parameters = from.find("parameters");
    if (parameters == from.end() || !parameters->is_object()) {
      return nullptr;
    }
    auto properties = parameters->find("properties");
    if (properties == parameters->end() || !properties->is_object()) {
      return nullptr;
    }
    auto found = properties->find(std::string(argument));
    return found != properties->end() ? &*found : nullptr;
  }
  return nullptr;
}

namespace {

// No value of another type than text fits.
bool wants_text(const Json& schema) {
  if (!schema.is_object()) {
    return false;
  }
  if (auto type = schema.find("type"); type != schema.end()) {
    return *type == "string";
  }
  auto values = schema.find("enum");
  return values != schema.end() && values->is_array() &&
         std::all_of(values->begin(), values->end(), [](const Json& value) {
           return value.is_string();
         });
}

std::string json_string(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string value_json(std::string_view text, const Json* schema) {
  if (schema == nullptr || !wants_text(*schema)) {
    std::string_view trimmed = without_front_space(without_end_space(text));
    if (trimmed == "True" || trimmed == "False" || trimmed == "None") {
      return trimmed == "True" ? "true" : trimmed == "False" ? "false" : "null";
    }
    if (Json::accept(trimmed)) {
      return std::string(trimmed);
    }
  }
  return json_string(text);
}

}  // namespace mlxcel
