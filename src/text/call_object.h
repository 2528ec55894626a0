// JSON that arrives in pieces: where a value ends, and a call written as an
// object.
#pragma once

#include <string>
#include <string_view>

namespace mlxcel {

// The end of an object or list whose text begins with its bracket.
class JsonSpan {
 public:
  // Bytes that belong to it.
  size_t push(std::string_view text);
  bool begun() const {
    return begun_;
  }
  bool complete() const {
    return begun_ && depth_ == 0;
  }

 private:
  int depth_ = 0;
  bool begun_ = false, string_ = false, escape_ = false;
};

// {"name": ..., "arguments": {...}} in any order, with other members left out.
// "tool_name" and "parameters" are taken for the same.
class CallObject {
 public:
  enum class Outcome : uint8_t { more, complete, broken };
  // *used: bytes that belong to the object. What follows it is left.
  Outcome push(std::string_view text, size_t* used);
  const std::string& name() const {
    return name_;
  }
  // What came of the arguments since the last time; "{}" at the end when the
  // object has none.
  std::string take_arguments();

 private:
  enum class State : uint8_t { open, member, key, colon, begin, value, after };
  void end_value();

  State state_ = State::open;
  std::string key_, value_, name_, arguments_;
  bool has_arguments_ = false, streams_ = false;
  bool string_ = false, escape_ = false;
  int depth_ = 0;
};

}  // namespace mlxcel
