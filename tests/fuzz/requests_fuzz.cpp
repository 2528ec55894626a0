// Bodies of requests for every route, through the handlers as the server runs
// them, up to the queue (the service has stopped, so nothing is generated): no
// crash, one answer each, never an internal error, errors with a type.
// The first byte chooses the route, and with it the first body; FUZZ_ROUTE in
// the environment keeps to the routes of that path.
//
// covers: src/server/body.cpp src/server/request_fields.cpp
//
// covers: src/server/openai.cpp src/server/completion_route.cpp
//
// covers: src/server/chat_route.cpp src/server/openai_completion_route.cpp
//
// covers: src/server/lora_routes.cpp src/server/text_routes.cpp
//
// covers: src/server/chat_prompt.cpp src/server/chat_plan.cpp
//
// covers: src/server/responses_input.cpp src/server/messages_input.cpp
#include "http/router.h"
#include "json_mutator.h"
#include "loading/pipeline.h"
#include "server/routes.h"
#include "text/special_ids.h"

#include <cstdio>
#include <cstdlib>
#include <deque>

using namespace mlxcel;
using nlohmann::json;

namespace {

constexpr std::string_view kTemplate =
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{# <think></think> #}";

// First bodies: each field that a route reads stands in one of them.
struct Start {
  std::string_view path;
  std::string_view body;
};

constexpr Start kStarts[] = {
    {"/completion",
     R"({"prompt":"ab","n_predict":4,"temperature":0.5,"top_k":4,"top_p":0.9,
        "min_p":0.1,"seed":3,"stop":["x"],"stream":true,"n_probs":2,
        "lora":[{"id":0,"scale":0.5}],"logit_bias":[[5,1.5],["a",false]],
        "cache_prompt":false,"repeat_penalty":1.1,"dry_multiplier":0.5,
        "xtc_probability":0.1,"response_fields":["content"]})"},
    {"/v1/completions",
     R"({"prompt":["ab",[3,4]],"max_tokens":0,"echo":true,"logprobs":2,"n":2,
        "model":"m","user":"u","stream_options":{"include_usage":true},
        "logit_bias":{"5":-100},"best_of":2,"suffix":null})"},
    {"/v1/chat/completions",
     R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":
        [{"type":"text","text":"t"},{"type":"image_url","image_url":{"url":"u"}}]}],
        "max_completion_tokens":3,"logprobs":true,"top_logprobs":2,"n":1})"},
    {"/v1/chat/completions",
     R"({"messages":[{"role":"user","content":"t"},{"role":"assistant",
        "content":"Once"}],"reasoning_budget":5,"reasoning_effort":"low",
        "reasoning_format":"none"})"},
    {"/v1/chat/completions",
     R"({"messages":[{"role":"user","content":"t"},{"role":"assistant",
        "content":null,"tool_calls":[{"id":"c","type":"function","function":
        {"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c",
        "content":"r"}],"tools":[{"type":"function","function":{"name":"f",
        "parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}],
        "tool_choice":"auto","parallel_tool_calls":false})"},
    {"/apply-template",
     R"({"messages":[{"role":"user","content":"t"},{"role":"assistant",
        "content":null,"tool_calls":[{"id":"c","type":"function","function":
        {"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c",
        "content":"r"}],"tools":[{"type":"function","function":{"name":"f",
        "parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}],
        "tool_choice":"auto","parallel_tool_calls":false})"},
    {"/v1/chat/completions",
     R"({"messages":[{"role":"user","content":"t"}],"response_format":{"type":
        "json_schema","json_schema":{"name":"n","schema":{"type":"object",
        "properties":{"a":{"enum":[1,"b"]}},"required":["a"]}}},
        "chat_template_kwargs":{"k":1},"add_generation_prompt":true})"},
    {"/completion",
     R"({"prompt":"a","grammar":"root ::= \"a\" | [b-d]+","n_predict":2,
        "n_keep":-1})"},
    {"/lora-adapters", R"([{"id":0,"scale":1}])"},
    {"/tokenize",
     R"({"content":"hi","add_special":true,"parse_special":false,
        "with_pieces":true,"tokens":[1,2,300]})"},
    {"/v1/responses",
     R"({"input":[{"role":"user","content":[{"type":"input_text","text":"t"}]}],
        "instructions":"i","max_output_tokens":3,"store":false,"text":{"format":
        {"type":"text"}},"reasoning":{"effort":"low"},"model":"m"})"},
    {"/v1/messages",
     R"({"messages":[{"role":"user","content":[{"type":"text","text":"t"}]}],
        "system":"s","max_tokens":3,"stop_sequences":["x"],"thinking":
        {"type":"enabled","budget_tokens":1024},"tool_choice":{"type":"any"},
        "tools":[{"name":"f","input_schema":{"type":"object"}}]})"},
    {"/v1/messages/count_tokens",
     R"({"messages":[{"role":"user","content":[{"type":"text","text":"t"}]}],
        "system":"s","max_tokens":3,"stop_sequences":["x"],"thinking":
        {"type":"enabled","budget_tokens":1024},"tool_choice":{"type":"any"},
        "tools":[{"name":"f","input_schema":{"type":"object"}}]})"},
    {"/v1/load_lora_adapter", R"({"lora_name":"a","lora_path":"../b"})"},
    {"/detokenize", R"({"tokens":[104,105,300,0]})"},
    {"/v1/unload_lora_adapter", R"({"lora_name":"a"})"},
    {"/props", R"({})"},
    {"/v1/cache/reset", "{}"},
    {"/v1/embeddings", R"({"input":"a"})"},
    {"/completion", R"({"prompt":"ab"})"},
    {"/v1/chat/completions",
     R"({"messages":[{"role":"user","content":"a"}],"temperature":0})"},
    {"/v1/messages",
     R"({"messages":[{"role":"user","content":"a"}],"max_tokens":1})"},
    {"/v1/responses", R"({"input":"a"})"},
    {"/tokenize", R"({"content":"a"})"},
};

constexpr std::string_view kWords[] = {
    "\"prompt\"",
    "\"messages\"",
    "\"role\":\"tool\"",
    "\"content\"",
    "\"lora\":[{\"id\":0,\"scale\":1e39}]",
    "\"stop\":[\"\",\"a\"]",
    "\"stream\":true",
    "\"response_format\":{\"type\":\"json_object\"}",
    "\"json_schema\":{\"type\":\"string\",\"pattern\":\"(a*)*\"}",
    "\"grammar\":\"root ::= root\"",
    "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "[3,[4,\"a\"]]",
};

void require(bool ok, const std::string& what) {
  if (!ok) {
    std::fprintf(stderr, "requests_fuzz: %s\n", what.c_str());
    std::abort();
  }
}

// Runs what is posted in order, on this thread.
class Here final : public http::Transport {
 public:
  void post(std::function<void()> work) override {
    work_.push_back(std::move(work));
  }
  void post_blocking(std::function<void()> work) override {
    work_.push_back(std::move(work));
  }
  void begin_stream() override {}
  void write(std::string, std::function<void(bool)> done) override {
    post([done = std::move(done)] { done(true); });
  }
  void run() {
    while (!work_.empty()) {
      auto work = std::move(work_.front());
      work_.pop_front();
      work();
    }
  }

 private:
  std::deque<std::function<void()>> work_;
};

// Parts of a server over a model of the fixtures, whose service has stopped.
struct Parts {
  Parts()
      : folder(MLXCEL_TEST_FIXTURES "/lora/bases/llama_untied_f32"),
        loaded(load_model(options())),
        adapters(loaded.adapters, "m", false),
        engine(
            (prepare(), *loaded.model),
            *loaded.backend,
            {.max_blocks = 16, .max_positions = 512}),
        service(engine, *model.tokenizer, model.eos, {}, metrics),
        app{model, adapters, service, metrics, {}, {}, {}} {
    service.stop();
    app.switches.props_post = true;
    app.load_adapter = [](const std::string&, const std::string&) {};
    app.unload_adapter = [](const std::string&) {};
    server::add_routes(router, app);
    const char* only = std::getenv("FUZZ_ROUTE");
    for (const Start& start : kStarts) {
      if (only == nullptr || start.path == only) {
        starts.push_back(&start);
        routes.push_back(router.match("POST", start.path).route);
      }
    }
    require(!routes.empty(), "no such route");
  }

  LoadOptions options() const {
    LoadOptions out;
    out.model = folder;
    out.backend = BackendKind::cpu;
    out.threads = 1;
    AdapterRequest adapter;
    adapter.folder = MLXCEL_TEST_FIXTURES "/lora/adapters/rank_1";
    adapter.fuse = false;
    out.adapters.push_back(adapter);
    return out;
  }

  void prepare() {
    model.alias = "m";
    model.folder = folder;
    model.vocab_size = loaded.model->vocab_size();
    model.context = 512;
    model.context_shift = true;
    model.tokenizer = Tokenizer::load(folder);
    model.eos = eos_ids(loaded.config.json(), folder, model.tokenizer.get());
    model.chat_template =
        ChatTemplate::from_source(std::string(kTemplate), folder);
    model.token_texts = std::make_unique<TokenTexts>(*model.tokenizer);
    model.grammars =
        std::make_unique<GrammarCompiler>(*model.tokenizer, model.eos);
  }

  std::filesystem::path folder;
  LoadedModel loaded;
  server::ServedModel model;
  server::Adapters adapters;
  Engine engine;
  http::Registry metrics;
  server::Service service;
  server::App app;
  http::Router router;
  // Those of kStarts that are tried, and their routes.
  std::vector<const Start*> starts;
  std::vector<const http::Route*> routes;
};

Parts& all_parts() {
  static Parts parts;
  return parts;
}

void check_answer(const http::Route& route, http::Response& response) {
  require(
      response.state() != http::Response::State::open,
      "no answer from " + route.path);
  int status = response.status();
  require(
      status == 200 || status == 400 || status == 403 || status == 404 ||
          status == 501 || status == 503,
      route.path + " answers " + std::to_string(status));
  if (status != 200) {
    json body = json::parse(response.body());
    require(
        body["error"]["type"].is_string() &&
            body["error"]["message"].is_string(),
        "an error without a type from " + route.path);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Parts& parts = all_parts();
  if (size == 0) {
    return 0;
  }
  const http::Route& route = *parts.routes[data[0] % parts.routes.size()];
  http::Request request;
  request.method = "POST";
  request.path = route.path;
  request.headers = {{"anthropic-version", "2023-06-01"}};
  request.params = {{"id", "0"}};
  request.body.assign(reinterpret_cast<const char*>(data) + 1, size - 1);
  auto transport = std::make_shared<Here>();
  http::Response response(transport, route.style);
  bool ended = false;
  auto fail = [&](const std::exception_ptr& error) {
    http::Failure failure = http::to_failure(error);
    if (response.state() == http::Response::State::open) {
      response.send_error(failure);
    }
  };
  try {
    http::start(
        route.handler(request, response), [&](std::exception_ptr error) {
          ended = true;
          if (error) {
            fail(error);
          }
        });
  } catch (...) {
    ended = true;
    fail(std::current_exception());
  }
  transport->run();
  if (!ended) {  // asks the engine's thread, which has gone
    response.cancel();
    transport->run();
    require(ended, route.path + " does not end when it is cancelled");
    return 0;
  }
  check_answer(route, response);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(
    uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  fuzz::JsonMutator mutator(seed, kWords);
  if (max_size < 2) {
    return size;
  }
  std::string body(
      reinterpret_cast<const char*>(data) + 1, size > 1 ? size - 1 : 0);
  uint8_t route = size > 0 ? data[0] : 0;
  if (body.empty() || mutator.pick(64) == 0) {
    const std::vector<const Start*>& starts = all_parts().starts;
    size_t start = mutator.pick(starts.size());
    route = uint8_t(start);
    body = starts[start]->body;
  }
  body = mutator.mutate(std::move(body), max_size - 1);
  data[0] = route;
  std::copy(body.begin(), body.end(), data + 1);
  return body.size() + 1;
}
