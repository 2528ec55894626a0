// Asio and Beast for the files that hold sockets; nothing else includes it:
// it takes seconds to compile.
#pragma once

// The thread sanitizer does not know fences. Asio's only order what its own
// locks order already.
#if defined(__SANITIZE_THREAD__)
#define BOOST_ASIO_DISABLE_FENCED_BLOCK
#endif

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

namespace mlxcel::http {

namespace asio = boost::asio;
using asio::awaitable;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Socket = asio::generic::stream_protocol::socket;
using Strand = asio::strand<asio::io_context::executor_type>;

// co_await operation(..., kResult): {error, value} in place of exceptions.
constexpr auto kResult = asio::as_tuple(asio::use_awaitable);

}  // namespace mlxcel::http
