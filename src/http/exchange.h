// A request with its answer while a connection works on it.
#pragma once

#include "http/connection.h"

namespace mlxcel::http {

struct Connection::Exchange {
  explicit Exchange(const std::shared_ptr<Connection>& owner)
      : response(owner, ErrorStyle::native) {}

  Request request;
  Response response;
  std::string target;  // as sent
  const Route* route = nullptr;
  std::exception_ptr error;  // what the handler threw
  Clock::time_point started = Clock::now();
  uint64_t bytes = 0;  // of the answer's body
  bool is_http11 = true;
  bool keep_alive = true;
  bool chunked = false;
  bool timed_out = false;
};

}  // namespace mlxcel::http
