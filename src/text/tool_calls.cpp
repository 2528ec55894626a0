#include "text/tool_calls.h"

#include "core/error.h"
#include "text/braces.h"
#include "text/call_object.h"
#include "text/held_text.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace mlxcel {

using Json = nlohmann::ordered_json;
using Kind = ChatDelta::Kind;

namespace {

std::string json_string(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

class FormatReader : public ToolCallReader {
 public:
  FormatReader(const ToolFormat& format, const Json& tools)
      : format_(format), tools_(tools), bare_(*format.call.open == '\0') {
    state_ = bare_ ? State::start : State::text;
  }

  void push(std::string_view text, std::vector<ChatDelta>* out) override {
    held_ += text;
    out_ = out;
    while (step()) {
    }
  }

  void finish(std::vector<ChatDelta>* out) override {
    out_ = out;
    ended_ = true;
    while (step()) {
    }
    switch (state_) {
      case State::text:
      case State::start:
      case State::plain:
        content(held_);
        break;
      case State::section:
        if (num_calls_ == calls_before_) {
          content(raw_ + held_);
        }
        break;
      case State::behind:
        break;
      default:
        // Within a call: what is not known to be one is text.
        if (!named_ &&
            (num_calls_ == calls_before_ || state_ == State::object)) {
          content(raw_ + held_);
        }
    }
    held_.clear();
    raw_.clear();
    state_ = State::plain;
  }

 private:
  enum class State : uint8_t {
    start,    // JSON alone may begin here
    text,     // looking for a mark
    plain,    // nothing but text follows
    section,  // between calls
    list,     // between the objects of an array
    object,   // within JSON
    name,
    arguments,  // JSON behind a name
    key,
    value,
    braces,
    closing,  // the mark behind a call
    behind,   // after all calls
  };

  void content(std::string text) {
    if (!text.empty()) {
      text.insert(0, spaces_);
      spaces_.clear();
      out_->push_back({Kind::content, std::move(text), -1, {}});
    }
  }

  // Moves text from what is held to the raw text of the call.
  std::string take(size_t count) {
    std::string text = held_.substr(0, count);
    held_.erase(0, count);
    if (!named_) {
      raw_ += text;
    }
    return text;
  }
  void drop_spaces() {
    take(held_.size() - without_front_space(held_).size());
  }

  void begin_call(std::string name) {
    std::string id;
    if (size_t at = name.find("[CALL_ID]"); at != std::string::npos) {
      id = name.substr(at + 9);
      name.resize(at);
    }
    if (format_.name == std::string_view("kimi")) {
      id = "functions." + name;
      name.resize(std::min(name.find(':'), name.size()));
    }
    name = std::string(without_front_space(without_end_space(name)));
    named_ = true;
    raw_.clear();
    spaces_ += std::exchange(before_, {});
    name_ = name;
    out_->push_back({Kind::call, std::move(name), num_calls_++, id});
  }
  void arguments(std::string text) {
    if (!text.empty()) {
      out_->push_back({Kind::arguments, std::move(text), num_calls_ - 1, {}});
    }
  }
  void begin_body() {
    named_ = false;
    any_argument_ = false;
    span_ = {};
    switch (format_.body) {
      case CallBody::object:
        object_.emplace();
        state_ = State::object;
        break;
      case CallBody::array:
        state_ = State::list;
        listed_ = false;
        break;
      case CallBody::braces:
        state_ = State::braces;
        break;
      default:
        state_ = State::name;
    }
  }
  // What was taken for a call is text; nothing of it is looked at again.
  void give_up() {
    content(raw_);
    raw_.clear();
    before_.clear();
    state_ = bare_ ? State::plain : State::text;
  }

  bool step() {
    switch (state_) {
      case State::start:
        return step_start();
      case State::text:
        return step_text();
      case State::plain:
        content(std::move(held_));
        held_.clear();
        return false;
      case State::section:
        return step_section();
      case State::list:
        return step_list();
      case State::object:
        return step_object();
      case State::name:
        return step_name();
      case State::arguments:
        return step_arguments();
      case State::key:
        return step_key();
      case State::value:
        return step_value();
      case State::braces:
        return step_braces();
      case State::closing:
        return step_closing();
      case State::behind:
        return step_behind();
    }
    return false;
  }

  bool step_start() {
    std::string_view seen = without_front_space(held_);
    std::string_view mark = format_.section.open;
    if (seen.empty() || (!mark.empty() && may_begin(seen, mark))) {
      return false;
    }
    if (!mark.empty() && seen.starts_with(mark)) {
      take(size_t(seen.data() - held_.data()) + mark.size());
      return true;
    }
    if (seen.front() != '{') {
      held_.insert(0, raw_);
      raw_.clear();
      state_ = State::plain;
      return true;
    }
    take(size_t(seen.data() - held_.data()));
    calls_before_ = num_calls_;
    begin_body();
    return true;
  }

  // The mark that comes first, of the section and of the call.
  bool step_text() {
    std::string_view section = format_.section.open;
    std::string_view call = without_end_space(format_.call.open);
    size_t at_section =
        section.empty() ? std::string::npos : held_.find(section);
    size_t at_call = held_.find(call);
    size_t at = std::min(at_section, at_call);
    if (at == std::string::npos) {
      size_t kept = std::max(begun(held_, section), begun(held_, call));
      // Spaces before a mark are no part of the answer.
      size_t ready = held_.size() - kept;
      if (!ended_) {
        ready =
            without_end_space(std::string_view(held_).substr(0, ready)).size();
      }
      content(held_.substr(0, ready));
      held_.erase(0, ready);
      return false;
    }
    // Spaces before a mark belong to the call, should it be none after all.
    size_t ready =
        without_end_space(std::string_view(held_).substr(0, at)).size();
    content(held_.substr(0, ready));
    raw_ = before_ = held_.substr(ready, at - ready);
    held_.erase(0, at);
    named_ = false;
    calls_before_ = num_calls_;
    if (at == at_section) {
      take(section.size());
      in_section_ = true;
      state_ = State::section;
    } else {
      take(call.size());
      begin_body();
    }
    return true;
  }

  bool step_section() {
    named_ = false;
    drop_spaces();
    std::string_view close = format_.section.close;
    std::string_view call = without_end_space(format_.call.open);
    if (held_.empty() ||
        (!ended_ && (may_begin(held_, close) || may_begin(held_, call)))) {
      return false;
    }
    if (held_.starts_with(call)) {
      take(call.size());
      begin_body();
      return true;
    }
    if (held_.starts_with(close)) {
      take(close.size());
      in_section_ = false;
      if (num_calls_ == calls_before_) {
        give_up();
      } else {
        raw_.clear();
        state_ = State::behind;
      }
      return true;
    }
    if (num_calls_ == calls_before_) {
      give_up();
    } else {
      raw_.clear();
      state_ = State::behind;
    }
    return true;
  }

  bool step_list() {
    drop_spaces();
    if (held_.empty()) {
      return false;
    }
    char c = held_.front();
    if (c == (listed_ ? ',' : '[')) {
      listed_ = true;
      take(1);
      return true;
    }
    if (c == '{' && listed_) {
      object_.emplace();
      state_ = State::object;
      return true;
    }
    if (c == ']' && listed_) {
      take(1);
      state_ = State::closing;
      return true;
    }
    if (num_calls_ == calls_before_) {
      give_up();
    } else {
      state_ = State::behind;
    }
    return true;
  }

  bool step_object() {
    size_t used = 0;
    CallObject::Outcome outcome = object_->push(held_, &used);
    take(used);
    if (!named_ && !object_->name().empty() &&
        (!bare_ || is_tool(object_->name()))) {
      begin_call(object_->name());
    }
    if (named_) {
      arguments(object_->take_arguments());
    }
    if (outcome == CallObject::Outcome::more) {
      return false;
    }
    if (outcome == CallObject::Outcome::broken || !named_) {
      if (named_) {
        state_ = State::behind;
      } else {
        give_up();
      }
      return true;
    }
    if (format_.body == CallBody::array) {
      state_ = State::list;
      named_ = false;
      raw_.clear();
    } else {
      state_ = State::closing;
    }
    return true;
  }

  bool is_tool(const std::string& name) const {
    for (const Json& tool : tools_) {
      if (function_name(tool) == name) {
        return true;
      }
    }
    return false;
  }

  bool step_name() {
    std::string_view end = format_.after[0];
    size_t at = held_.find(end);
    size_t width = end.size();
    if (format_.body == CallBody::parameters) {
      // A call without arguments, or without the line's end.
      for (std::string_view other :
           {std::string_view(format_.parameter.open),
            std::string_view(format_.call.close)}) {
        if (size_t found = held_.find(other); found < at) {
          at = found;
          width = 0;
        }
      }
    }
    if (at == std::string::npos) {
      // Some models leave the mark out before the arguments.
      if (size_t brace = held_.find('{');
          brace != std::string::npos && format_.body == CallBody::named_json) {
        at = brace;
        width = 0;
      } else {
        return false;
      }
    }
    std::string name(without_front_space(
        without_end_space(std::string_view(held_).substr(0, at))));
    if (name.empty() || name.size() > 256 ||
        name.find_first_of("\n{}\"<") != std::string::npos) {
      give_up();
      return true;
    }
    take(at + width);
    begin_call(name);
    if (format_.body == CallBody::parameters) {
      arguments("{");
      state_ = State::key;
    } else {
      state_ = State::arguments;
    }
    return true;
  }

  // JSON, passed on as it comes.
  bool step_arguments() {
    if (!span_.begun()) {
      drop_spaces();
      if (held_.empty()) {
        return false;
      }
      if (held_.front() != '{') {
        arguments("{}");
        state_ = State::closing;
        return true;
      }
    }
    size_t used = span_.push(held_);
    arguments(take(used));
    if (!span_.complete()) {
      return false;
    }
    state_ = State::closing;
    return true;
  }

  bool step_key() {
    drop_spaces();
    std::string_view close = format_.call.close, open = format_.parameter.open;
    if (held_.starts_with(close)) {
      arguments("}");
      take(close.size());
      end_of_call();
      return true;
    }
    if (!held_.starts_with(open)) {
      if (!ended_ && (may_begin(held_, close) || may_begin(held_, open))) {
        return false;
      }
      if (held_.empty()) {
        return false;
      }
      arguments("}");
      end_of_call();
      return true;
    }
    size_t end = held_.find(format_.after[1], open.size());
    if (end == std::string::npos) {
      return false;
    }
    size_t behind = end + std::string_view(format_.after[1]).size();
    if (std::string_view value = format_.after[2]; !value.empty()) {
      size_t found = held_.find(value, behind);
      if (found == std::string::npos) {
        return false;
      }
      behind = found + value.size();
    }
    key_ = held_.substr(open.size(), end - open.size());
    take(behind);
    state_ = State::value;
    return true;
  }

  bool step_value() {
    std::string_view close = format_.parameter.close;
    size_t end = held_.find(close);
    if (end == std::string::npos) {
      return false;
    }
    std::string text = take(end);
    take(close.size());
    // One line end on either side belongs to the notation.
    if (text.starts_with("\n")) {
      text.erase(0, 1);
    }
    if (text.ends_with("\n")) {
      text.pop_back();
    }
    arguments(
        cat(any_argument_ ? "," : "",
            json_string(key_),
            ":",
            value_json(text, argument_schema(tools_, name_, key_))));
    any_argument_ = true;
    state_ = State::key;
    return true;
  }

  // Converted as a whole once the closing mark is there, outside of strings.
  bool step_braces() {
    size_t brace = held_.find('{');
    if (brace == std::string::npos) {
      return false;
    }
    std::string_view quote = format_.parameter.open;
    std::string_view close = format_.call.close;
    size_t at = brace;
    bool inside = false;
    while (true) {
      size_t next_quote = held_.find(quote, at);
      size_t next_close = inside ? std::string::npos : held_.find(close, at);
      if (next_close < next_quote) {
        at = next_close;
        break;
      }
      if (next_quote == std::string::npos) {
        return false;
      }
      inside = !inside;
      at = next_quote + quote.size();
    }
    std::optional<std::string> json = braces_to_json(
        std::string_view(held_).substr(brace, at - brace), quote);
    if (!json) {
      take(at + close.size());
      give_up();
      return true;
    }
    std::string name = held_.substr(0, brace);
    take(at + close.size());
    begin_call(name);
    arguments(std::move(*json));
    end_of_call();
    return true;
  }

  bool step_closing() {
    std::string_view close = without_front_space(format_.call.close);
    if (!close.empty()) {
      drop_spaces();
      if (held_.empty() || (!ended_ && may_begin(held_, close))) {
        return false;
      }
      if (held_.starts_with(close)) {
        take(close.size());
      }
    }
    end_of_call();
    return true;
  }

  void end_of_call() {
    named_ = false;
    raw_.clear();
    state_ = in_section_ ? State::section : State::behind;
  }

  // More calls may follow, or text, which keeps the spaces around the calls.
  bool step_behind() {
    size_t spaces = held_.size() - without_front_space(held_).size();
    spaces_ += held_.substr(0, spaces);
    held_.erase(0, spaces);
    raw_.clear();
    if (held_.empty()) {
      return false;
    }
    if (bare_) {
      if (held_.front() == ';') {
        held_.erase(0, 1);
        return true;
      }
      state_ = State::start;
      return true;
    }
    state_ = State::text;
    return true;
  }

  const ToolFormat& format_;
  Json tools_;
  bool bare_;
  State state_ = State::text;
  std::string held_;             // not looked at yet
  std::string raw_;              // of a call whose name is not known
  std::string before_, spaces_;  // in front of that call; around earlier ones
  bool ended_ = false, named_ = false, in_section_ = false;
  bool listed_ = false, any_argument_ = false;
  int calls_before_ = 0;
  std::optional<CallObject> object_;
  JsonSpan span_;
  std::string name_, key_;
  std::vector<ChatDelta>* out_ = nullptr;
};

}  // namespace

std::unique_ptr<ToolCallReader> make_tool_call_reader(
    const ToolFormat& format, const Json& tools) {
  return std::make_unique<FormatReader>(format, tools);
}

}  // namespace mlxcel
