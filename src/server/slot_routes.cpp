// GET /slots; POST /slots/{id}?action=save|restore|erase
//
// A slot has no memory of its own: what its last sequence computed is in the
// prefix cache, which all slots share. Saving a slot writes that to a file;
// restoring puts it back into the prefix cache, whichever slot is named.
#include "core/error.h"
#include "server/answers.h"
#include "server/body.h"
#include "server/routes.h"
#include "server/slot_file.h"

#include <algorithm>
#include <charconv>
#include <chrono>

namespace mlxcel::server {

using http::Failure;
using nlohmann::json;

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin)
      .count();
}

json slot_of(const SlotInfo& slot, int64_t context) {
  const SequenceInfo& s = slot.sequence;
  constexpr const char* kStates[] = {
      "waiting", "running", "preempted", "ended"};
  return {
      {"id_task", slot.task},
      {"n_ctx", context},
      {"is_processing", true},
      {"state", kStates[size_t(s.state)]},
      {"n_prompt_tokens", s.num_prompt},
      {"n_prompt_tokens_processed", std::min(s.computed, s.num_prompt)},
      {"n_prompt_tokens_cache", s.cached},
      {"n_decoded", s.generated},
      {"params",
       {{"n_predict", slot.max_tokens}, {"temperature", slot.temperature}}}};
}

// The slots by number; what waits for one is in none.
json slots_of(
    const std::vector<SlotInfo>& busy, size_t total, int64_t context) {
  json slots = json::array();
  for (size_t i = 0; i < total; ++i) {
    slots.push_back({{"n_ctx", context}, {"is_processing", false}});
  }
  for (const SlotInfo& slot : busy) {
    if (slot.slot >= 0 && size_t(slot.slot) < total) {
      slots[size_t(slot.slot)] = slot_of(slot, context);
    }
  }
  // Numbers go further where some gave way to others and keep theirs; those
  // that run are shown in their places.
  for (const SlotInfo& slot : busy) {
    if (slot.slot >= int(total)) {
      auto place = std::ranges::find_if(slots, [](const json& entry) {
        return entry.value("state", "") != "running";
      });
      if (place != slots.end()) {
        *place = slot_of(slot, context);
      }
    }
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i]["id"] = i;
  }
  return slots;
}

http::Task<> answer_slots(
    const App& app, const http::Request& request, http::Response& response) {
  std::function<std::vector<SlotInfo>(Engine&)> inspect = [&app](Engine&) {
    return app.service.inspect();
  };
  std::optional<std::vector<SlotInfo>> busy =
      co_await ask_engine(app, response, inspect);
  if (!busy) {
    co_return;
  }
  size_t total = size_t(app.model.slots);
  if (request.has_query("fail_on_no_slot") && busy->size() >= total) {
    throw Failure(503, "unavailable_error", "no slot available");
  }
  response.send_json(200, slots_of(*busy, total, app.model.context));
}

int slot_id(const App& app, const http::Request& request) {
  std::string_view text = request.param("id");
  int id = -1;
  auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0 ||
      id >= app.model.slots) {
    throw Failure::bad_request(
        cat("there is no slot ",
            text,
            ": this server has slots 0 to ",
            app.model.slots - 1));
  }
  return id;
}

// A name alone, so that nothing outside the folder is reached.
std::filesystem::path file_of(const App& app, const http::Request& request) {
  json object = http::parse_body(request.body);
  Body body(object);
  std::string name = body.text("filename").value_or("");
  body.finish();
  constexpr size_t kLongest = 200;
  bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != '/' && c != '\\' &&
           c != 0x7f;
  });
  if (name.empty() || name.size() > kLongest || name.front() == '.' || !plain) {
    throw Failure::bad_request(
        cat("\"filename\" must be the name of a file in the folder of "
            "--slot-save-path: at most ",
            kLongest,
            " bytes, without slashes and without a dot at its beginning"),
        "filename");
  }
  return app.slot_folder / name;
}

Failure busy_slot(int id) {
  Failure failure(
      503,
      "unavailable_error",
      cat("slot ", id, " is answering: try again when it has finished"));
  failure.retry_after = 1;
  return failure;
}

// What `work` makes of a slot that is not answering.
template <typename T>
http::Task<std::optional<T>> ask_slot(
    const App& app,
    http::Response& response,
    int id,
    std::function<T(Engine&, SlotContent&)> work) {
  std::function<T(Engine&)> question = [&app, id, work](Engine& engine) {
    SlotContent* slot = app.service.content_of(id);
    if (slot == nullptr) {
      throw busy_slot(id);
    }
    return work(engine, *slot);
  };
  std::optional<T> answer = co_await ask_engine(app, response, question);
  co_return answer;
}

http::Task<> save(
    const App& app, const http::Request& request, http::Response& response) {
  int id = slot_id(app, request);
  std::filesystem::path path = file_of(app, request);
  Clock::time_point begin = Clock::now();
  std::function<SavedPrefix(Engine&, SlotContent&)> work =
      [](Engine& engine, SlotContent& slot) {
        return engine.save_prefix(slot.key, slot.tokens);
      };
  std::optional<SavedPrefix> saved = co_await ask_slot(app, response, id, work);
  if (!saved) {
    co_return;
  }
  if (saved->tokens.empty()) {
    throw Failure::bad_request(
        cat("slot ",
            id,
            " holds nothing to save: it has answered nothing, or the prompt "
            "cache has dropped it or found it too short"));
  }
  auto write = [&] { return write_slot(path, *saved, app.slot_fingerprint); };
  int64_t bytes = co_await http::background(response.executor(), write);
  response.send_json(
      200,
      {{"id_slot", id},
       {"filename", path.filename().string()},
       {"n_saved", saved->tokens.size()},
       {"n_written", bytes},
       {"timings", {{"save_ms", milliseconds_since(begin)}}}});
}

int64_t restore_into(Engine& engine, SavedPrefix& saved, SlotContent& slot) {
  std::optional<int64_t> positions = engine.restore_prefix(saved);
  if (!positions) {
    Failure failure(
        503,
        "unavailable_error",
        cat("the KV cache has no room for the ",
            saved.blocks.size(),
            " blocks of the saved slot beside what is running"));
    failure.retry_after = 1;
    throw failure;
  }
  slot = {std::move(saved.key), std::move(saved.tokens)};
  return *positions;
}

http::Task<> restore(
    const App& app, const http::Request& request, http::Response& response) {
  int id = slot_id(app, request);
  std::filesystem::path path = file_of(app, request);
  Clock::time_point begin = Clock::now();
  auto read = [&] {
    return std::make_shared<SlotFile>(read_slot(
        path, app.slot_fingerprint, app.model.vocab_size, app.slot_sizes));
  };
  std::shared_ptr<SlotFile> file =
      co_await http::background(response.executor(), read);
  std::function<int64_t(Engine&, SlotContent&)> work =
      [file](Engine& engine, SlotContent& slot) {
        return restore_into(engine, file->saved, slot);
      };
  std::optional<int64_t> positions = co_await ask_slot(app, response, id, work);
  if (!positions) {
    co_return;
  }
  response.send_json(
      200,
      {{"id_slot", id},
       {"filename", path.filename().string()},
       {"n_restored", *positions},
       {"n_read", file->bytes},
       {"timings", {{"restore_ms", milliseconds_since(begin)}}}});
}

http::Task<> erase(
    const App& app, const http::Request& request, http::Response& response) {
  int id = slot_id(app, request);
  std::function<size_t(Engine&, SlotContent&)> work = [](Engine& engine,
                                                         SlotContent& slot) {
    engine.prefix_cache().forget(slot.key, slot.tokens);
    return std::exchange(slot, {}).tokens.size();
  };
  std::optional<size_t> erased = co_await ask_slot(app, response, id, work);
  if (erased) {
    response.send_json(200, {{"id_slot", id}, {"n_erased", *erased}});
  }
}

http::Task<> change_slot(
    const App& app, const http::Request& request, http::Response& response) {
  std::string_view action = request.query_value("action");
  if (action == "save") {
    co_await save(app, request, response);
  } else if (action == "restore") {
    co_await restore(app, request, response);
  } else if (action == "erase") {
    co_await erase(app, request, response);
  } else {
    throw Failure::bad_request(
        cat("unknown action '", action, "': it is save, restore or erase"),
        "action");
  }
}

}  // namespace

void add_slots_routes(http::Router& router, const App& app) {
  http::Route route;
  route.method = "GET";
  route.path = "/slots";
  if (app.switches.slots) {
    route.handler = [&app](const http::Request& request, http::Response& r) {
      return answer_slots(app, request, r);
    };
  } else {
    route.handler = http::immediate([](const http::Request&, http::Response&) {
      throw Failure::not_supported(
          "this route is off; start the server without --no-slots");
    });
  }
  router.add(route);

  route.method = "POST";
  route.path = "/slots/{id}";
  if (!app.slot_folder.empty()) {
    route.handler = [&app](const http::Request& request, http::Response& r) {
      return change_slot(app, request, r);
    };
  } else {
    route.handler = http::immediate([](const http::Request&, http::Response&) {
      throw Failure::not_supported(
          "saving slots is off; start the server with --slot-save-path DIR");
    });
  }
  router.add(route);
}

}  // namespace mlxcel::server
