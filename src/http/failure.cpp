#include "http/failure.h"

#include "core/error.h"
#include "core/log.h"

#include <new>

namespace mlxcel::http {

namespace {

// Anthropic's names for what the others call differently.
std::string_view anthropic_type(const Failure& failure) {
  switch (failure.status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return failure.status < 500 ? "invalid_request_error" : "api_error";
  }
}

// Whether whoever asked can mend it: what they sent, or a file that they named.
// Other errors are the server's own: its device, its memory, its model.
bool is_about_input(const Error& error) {
  return dynamic_cast<const UsageError*>(&error) != nullptr ||
         dynamic_cast<const ConfigError*>(&error) != nullptr ||
         dynamic_cast<const CheckpointError*>(&error) != nullptr ||
         dynamic_cast<const AdapterError*>(&error) != nullptr ||
         dynamic_cast<const SurgeryError*>(&error) != nullptr ||
         dynamic_cast<const TextError*>(&error) != nullptr;
}

}  // namespace

Failure Failure::bad_request(const std::string& message, std::string param) {
  Failure failure(400, "invalid_request_error", message);
  failure.param = std::move(param);
  return failure;
}

Failure Failure::not_supported(const std::string& message) {
  return Failure(501, "not_supported_error", message);
}

Failure to_failure(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Failure& failure) {
    return failure;
  } catch (const ShapeError& fault) {
    log_warning(cat("a request failed: ", fault.what()));
    return Failure(500, "server_error", "internal error");
  } catch (const Error& fault) {
    if (is_about_input(fault)) {
      return Failure::bad_request(fault.what());
    }
    log_warning(cat("a request failed: ", fault.what()));
    return Failure(500, "server_error", fault.summary());
  } catch (const std::bad_alloc&) {
    log_warning("a request failed: out of memory");
    Failure failure(503, "unavailable_error", "the server is out of memory");
    failure.retry_after = 5;
    return failure;
  } catch (const std::exception& fault) {
    log_warning(cat("a request failed: ", fault.what()));
    return Failure(500, "server_error", "internal error");
  } catch (...) {
    return Failure(500, "server_error", "internal error");
  }
}

nlohmann::json error_body(
    const Failure& failure, ErrorStyle style, std::string_view request_id) {
  std::string message = failure.what();
  if (style == ErrorStyle::anthropic) {
    nlohmann::json body = {
        {"type", "error"},
        {"error", {{"type", anthropic_type(failure)}, {"message", message}}}};
    if (!request_id.empty()) {
      body["request_id"] = request_id;
    }
    return body;
  }
  nlohmann::json error = {{"message", message}, {"type", failure.type}};
  if (style == ErrorStyle::openai) {
    error["param"] = failure.param.empty() ? nlohmann::json()
                                           : nlohmann::json(failure.param);
    error["code"] =
        failure.code.empty() ? nlohmann::json() : nlohmann::json(failure.code);
  } else {
    error["code"] = failure.status;
  }
  if (failure.details.is_object()) {
    error.update(failure.details);
  }
  return {{"error", error}};
}

std::string dump_json(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

nlohmann::json parse_any_body(std::string_view body) {
  if (body.empty()) {
    throw Failure::bad_request("the request has no body; send JSON");
  }
  try {
    return parse_json(body, "the request's body");
  } catch (const Error& error) {  // what to do is said for files
    throw Failure::bad_request(cat(error.summary(), ": ", error.why()));
  }
}

nlohmann::json parse_body(std::string_view body) {
  nlohmann::json value = parse_any_body(body);
  if (!value.is_object()) {
    throw Failure::bad_request(cat(
        "the request's body must be a JSON object, not ", value.type_name()));
  }
  return value;
}

}  // namespace mlxcel::http
