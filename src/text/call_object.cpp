#include "text/call_object.h"

#include "text/held_text.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace mlxcel {

using Json = nlohmann::ordered_json;

size_t JsonSpan::push(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    begun_ = true;
    if (escape_) {
      escape_ = false;
    } else if (string_) {
      escape_ = c == '\\';
      string_ = c != '"';
    } else if (c == '"') {
      string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if ((c == '}' || c == ']') && --depth_ == 0) {
      return i + 1;
    }
  }
  return text.size();
}

namespace {

bool is_name(const std::string& key) {
  return key == "name" || key == "tool_name" || key == "function";
}

bool is_arguments(const std::string& key) {
  return key == "arguments" || key == "parameters";
}

bool is_space(char c) {
  return kSpaces.find(c) != std::string_view::npos;
}

}  // namespace

CallObject::Outcome CallObject::push(std::string_view text, size_t* used) {
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    *used = i + 1;
    switch (state_) {
      case State::open:
        if (is_space(c)) {
          break;
        }
        if (c != '{') {
          *used = i;
          return Outcome::broken;
        }
        state_ = State::member;
        break;
      case State::member:
      case State::after:
        if (is_space(c) || (c == ',' && state_ == State::after)) {
          state_ = c == ',' ? State::member : state_;
        } else if (c == '}') {
          if (!has_arguments_) {
            has_arguments_ = true;
            arguments_ = "{}";
          }
          return Outcome::complete;
        } else if (c == '"' && state_ == State::member) {
          key_.clear();
          state_ = State::key;
        } else {
          return Outcome::broken;
        }
        break;
      case State::key:
        if (c == '"' && !escape_) {
          state_ = State::colon;
        } else {
          escape_ = c == '\\' && !escape_;
          key_ += c;
        }
        break;
      case State::colon:
        if (c == ':') {
          state_ = State::begin;
        } else if (!is_space(c)) {
          return Outcome::broken;
        }
        break;
      case State::begin:
        if (is_space(c)) {
          break;
        }
        value_.clear();
        streams_ = is_arguments(key_) && c == '{' && !has_arguments_;
        has_arguments_ = has_arguments_ || streams_;
        string_ = escape_ = false;
        depth_ = 0;
        state_ = State::value;
        [[fallthrough]];
      case State::value: {
        bool outside = depth_ == 0 && !string_;
        if (outside && (c == ',' || c == '}' || c == ']')) {
          end_value();
          *used = i;
          --i;  // belongs to the object
          break;
        }
        (streams_ ? arguments_ : value_) += c;
        if (escape_) {
          escape_ = false;
        } else if (string_) {
          escape_ = c == '\\';
          string_ = c != '"';
        } else if (c == '"') {
          string_ = true;
        } else if (c == '{' || c == '[') {
          ++depth_;
        } else if (c == '}' || c == ']') {
          --depth_;
        }
        if (depth_ == 0 && !string_ && (c == '"' || c == '}' || c == ']')) {
          end_value();
        }
        break;
      }
    }
  }
  return Outcome::more;
}

void CallObject::end_value() {
  state_ = State::after;
  if (std::exchange(streams_, false)) {
    return;
  }
  Json value = Json::parse(value_, nullptr, false);
  if (is_name(key_) && value.is_string() && name_.empty()) {
    name_ = value.get<std::string>();
  } else if (is_arguments(key_) && !has_arguments_) {
    has_arguments_ = true;
    // Some models write the arguments as a string that holds JSON.
    arguments_ = value.is_string() ? value.get<std::string>()
                 : value.is_null() ? std::string("{}")
                                   : value_;
  }
}

std::string CallObject::take_arguments() {
  return std::exchange(arguments_, {});
}

}  // namespace mlxcel
