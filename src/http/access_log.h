// One line a request.
#pragma once

#include "http/message.h"
#include "http/options.h"

#include <string>

namespace mlxcel::http {

struct AccessRecord {
  const Request& request;
  const Response& response;
  int status = 0;      // 499 when the client left before an answer
  uint64_t bytes = 0;  // of the answer's body, as it was sent
  double seconds = 0;  // from the last header to the last byte
};

// text: POST /completion 200 12.3 ms 512 B 127.0.0.1:5555 id=... tokens=12
// json: an object with method, path, status, ms, bytes, peer, id and what the
// handler noted. Paths come without their query, which may hold secrets.
std::string access_line(const AccessRecord& record, LogFormat format);

// The client's x-request-id if it is short and printable, else the trace id of
// its traceparent header, else a new one of 32 hexadecimal digits.
std::string trace_id_of(const Request& request);

// The W3C trace context to answer with: the client's trace id with a span of
// our own; empty when it sent none, or one that is not valid.
std::string traceparent_of(const Request& request);

}  // namespace mlxcel::http
