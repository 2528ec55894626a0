// Routes of other kinds of models, and of parts that this server has not: each
// answers 501 and says what it lacks.
#include "core/error.h"
#include "server/routes.h"

namespace mlxcel::server {

namespace {

struct Unbuilt {
  const char* method;
  const char* path;
  const char* lacks;
  http::ErrorStyle style;
};

constexpr auto kNative = http::ErrorStyle::native;
constexpr auto kOpenai = http::ErrorStyle::openai;

constexpr Unbuilt kUnbuilt[] = {
    {"POST", "/v1/embeddings", "an embedding model", kOpenai},
    {"POST", "/embedding", "an embedding model", kNative},
    {"POST", "/embeddings", "an embedding model", kNative},
    {"POST", "/rerank", "a reranker", kNative},
    {"POST", "/reranking", "a reranker", kNative},
    {"POST", "/v1/rerank", "a reranker", kNative},
    {"POST", "/v1/reranking", "a reranker", kNative},
    {"POST", "/v1/audio/speech", "an audio model", kOpenai},
    {"POST", "/v1/audio/transcriptions", "an audio model", kOpenai},
    {"POST", "/v1/audio/translations", "an audio model", kOpenai},
    {"POST", "/v1/chat/completions/control", "control of answers", kOpenai},
    {"POST", "/chat/completions/control", "control of answers", kOpenai},
    {"GET", "/v1/responses/{id}", "stored responses", kOpenai},
    {"DELETE", "/v1/responses/{id}", "stored responses", kOpenai},
    {"POST", "/v1/responses/{id}/cancel", "stored responses", kOpenai},
    {"GET", "/responses/{id}", "stored responses", kOpenai},
    {"DELETE", "/responses/{id}", "stored responses", kOpenai},
    {"POST", "/responses/{id}/cancel", "stored responses", kOpenai},
    {"POST", "/infill", "fill-in-the-middle prompts", kNative},
    {"POST", "/models", "router mode", kNative},
    {"DELETE", "/models", "router mode", kNative},
    {"POST", "/models/load", "router mode", kNative},
    {"POST", "/models/unload", "router mode", kNative},
    {"GET", "/models/sse", "router mode", kNative},
    {"GET", "/router/stats", "router mode", kNative},
    {"GET", "/v1/settings", "live settings", kNative},
    {"POST", "/v1/settings", "live settings", kNative},
    {"GET", "/v1/stream", "resumable streams", kNative},
    {"GET", "/v1/streams/lookup", "resumable streams", kNative},
    {"GET", "/v1/internal/mtp-policy", "speculative decoding", kNative},
};

}  // namespace

void add_unbuilt_routes(http::Router& router) {
  for (const Unbuilt& unbuilt : kUnbuilt) {
    http::Route route;
    route.method = unbuilt.method;
    route.path = unbuilt.path;
    route.style = unbuilt.style;
    std::string message = cat(
        unbuilt.path, " is not built yet: this server lacks ", unbuilt.lacks);
    route.handler =
        http::immediate([message](const http::Request&, http::Response&) {
          throw http::Failure::not_supported(message);
        });
    router.add(route);
  }
  for (const char* path : {"/tools", "/cors-proxy"}) {
    for (const char* method : {"GET", "POST"}) {
      http::Route route;
      route.method = method;
      route.path = path;
      route.handler =
          http::immediate([](const http::Request&, http::Response&) {
            throw http::Failure(
                403, "feature_disabled", "this server runs no tools");
          });
      router.add(route);
    }
  }
}

}  // namespace mlxcel::server
