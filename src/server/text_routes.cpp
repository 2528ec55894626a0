// POST /tokenize, /detokenize and /apply-template.
#include "core/error.h"
#include "server/answers.h"
#include "server/body.h"
#include "server/chat_plan.h"
#include "server/routes.h"
#include "text/token_bytes.h"

namespace mlxcel::server {

using nlohmann::json;

namespace {

// Text where the token is one, else its bytes: a part of a character.
json piece_of(const ServedModel& model, int32_t token) {
  std::string piece = token_bytes(*model.tokenizer, token);
  if (is_utf8(piece)) {
    return piece;
  }
  json bytes = json::array();
  for (unsigned char byte : piece) {
    bytes.push_back(byte);
  }
  return bytes;
}

json tokenize(const App& app, const http::Request& request) {
  json object = http::parse_body(request.body);
  Body body(object);
  std::optional<std::string> content = body.text("content");
  bool add_special = body.flag("add_special", false);
  bool parse_special = body.flag("parse_special", true);
  bool with_pieces = body.flag("with_pieces", false);
  body.finish();
  if (!content) {
    Body::refuse("content", "is missing; give the text");
  }
  check_length(*content, TextUse::count, app.model);
  std::vector<int32_t> ids =
      parse_special ? app.model.tokenizer->encode(*content, add_special)
                    : app.model.tokenizer->encode_plain(*content, add_special);
  json tokens = json::array();
  for (int32_t id : ids) {
    if (with_pieces) {
      tokens.push_back({{"id", id}, {"piece", piece_of(app.model, id)}});
    } else {
      tokens.push_back(id);
    }
  }
  return {{"tokens", tokens}};
}

json detokenize(const App& app, const http::Request& request) {
  json object = http::parse_body(request.body);
  Body body(object);
  const json* tokens = body.find("tokens");
  body.finish();
  if (tokens == nullptr || !tokens->is_array()) {
    Body::refuse("tokens", "must be an array of token ids");
  }
  std::vector<int32_t> ids;
  for (const json& token : *tokens) {
    bool inside = token.is_number_unsigned() &&
                  token.get<uint64_t>() < uint64_t(app.model.vocab_size);
    if (!inside) {
      Body::refuse(
          "tokens",
          cat("holds ",
              token.dump(),
              ", which is no token of a vocabulary of ",
              app.model.vocab_size));
    }
    ids.push_back(token.get<int32_t>());
  }
  return {{"content", app.model.tokenizer->decode(ids, false)}};
}

json apply_template(const App& app, const http::Request& request) {
  const auto [object, raw] = parse_object(request.body);
  Body body(object);
  ChatInput input = read_chat_input(body, raw, app.model);
  nlohmann::ordered_json tools = nullptr;
  if (const json* given = body.find("tools"); given && !given->empty()) {
    tools = raw.at("tools");
    check_tools(tools);
  }
  body.ignore({"model"});
  body.finish();
  return {{"prompt", conversation_text(std::move(input), tools, app.model)}};
}

using Reader = json (*)(const App&, const http::Request&);

http::Task<> answer(
    const App& app,
    Reader reader,
    const http::Request& request,
    http::Response& response) {
  auto read = [&] { return reader(app, request); };
  json body = co_await read_aside(request, response, read);
  response.send_json(200, body);
}

http::Route post(const std::string& path, const App& app, Reader reader) {
  http::Route route;
  route.method = "POST";
  route.path = path;
  route.handler = [&app, reader](
                      const http::Request& request, http::Response& response) {
    return answer(app, reader, request, response);
  };
  return route;
}

}  // namespace

void add_tokenize_routes(http::Router& router, const App& app) {
  router.add(post("/tokenize", app, tokenize));
  router.add(post("/detokenize", app, detokenize));
}

void add_template_routes(http::Router& router, const App& app) {
  router.add(post("/apply-template", app, apply_template));
}

}  // namespace mlxcel::server
