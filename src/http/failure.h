// What a handler throws to answer with an error, and how each kind of API
// writes errors.
#pragma once

#include "io/json.h"

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace mlxcel::http {

// native: {"error":{"code":400,"message":...,"type":...}}
// openai: {"error":{"message":...,"type":...,"param":...,"code":...}}
// anthropic: {"type":"error","error":{"type":...,"message":...}}
enum class ErrorStyle { native, openai, anthropic };

// Types are stable: clients may match on them.
//   400 invalid_request_error, exceed_context_size_error
//   401 authentication_error   403 permission_error, feature_disabled
//   404 not_found_error        405 method_not_allowed
//   408, 504 timeout_error     413 request_too_large
//   431 invalid_request_error  500 server_error
//   501 not_supported_error    503 unavailable_error
class Failure : public std::runtime_error {
 public:
  Failure(int http_status, std::string stable_type, const std::string& message)
      : std::runtime_error(message),
        status(http_status),
        type(std::move(stable_type)) {}

  // 400 invalid_request_error; `param` names the body's field at fault.
  static Failure bad_request(
      const std::string& message, std::string param = {});
  // 501 not_supported_error
  static Failure not_supported(const std::string& message);

  int status;
  std::string type;
  std::string param;       // openai's "param"
  std::string code;        // openai's "code", e.g. "model_not_found"
  nlohmann::json details;  // object: further members of native errors
  int retry_after = 0;     // seconds, for 503; 0 for no header
};

// What `error` means to a client. Errors about the input (usage, config,
// checkpoint, adapter, surgery, text; core/error.h) are 400. All else is
// logged: lack of memory is 503; other errors are 500, of which a plain Error's
// summary is sent and nothing of foreign exceptions.
Failure to_failure(const std::exception_ptr& error);

nlohmann::json error_body(
    const Failure& failure, ErrorStyle style, std::string_view request_id = {});

// JSON on one line; bytes that are not UTF-8 become U+FFFD.
std::string dump_json(const nlohmann::json& value);

// The body of a request, which must be an object. Throws Failure.
nlohmann::json parse_body(std::string_view body);
// Any JSON value.
nlohmann::json parse_any_body(std::string_view body);

}  // namespace mlxcel::http
