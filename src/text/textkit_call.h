// Calls into textkit: results arrive through a sink and come back as strings;
// its error codes become exceptions.
#pragma once

#include "core/error.h"
#include "textkit.h"

#include <string>
#include <utility>

namespace mlxcel {

inline void append_to_string(
    void* user, const void* data, size_t size) noexcept {
  static_cast<std::string*>(user)->append(static_cast<const char*>(data), size);
}

// call(sink, user) returns textkit's code. The result, or the message when
// *code is not TK_OK.
template <typename Call>
std::string textkit_result(Call&& call, int* code) {
  std::string out;
  *code = call(&append_to_string, &out);
  return out;
}

// The same; throws TextError(what, textkit's message, fix) on failure.
template <typename Call>
std::string textkit_call(
    const std::string& what, const std::string& fix, Call&& call) {
  int code = TK_OK;
  std::string out = textkit_result(std::forward<Call>(call), &code);
  if (code != TK_OK) {
    throw TextError(what, out, fix);
  }
  return out;
}

}  // namespace mlxcel
