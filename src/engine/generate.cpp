#include "engine/generate.h"

#include "core/error.h"
#include "engine/text_stream.h"

#include <chrono>

namespace mlxcel {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Gives the sequence's blocks back on every way out.
struct Running {
  Engine& engine;
  int64_t id;
  ~Running() {
    engine.release(id);
  }
};

}  // namespace

GenerateResult generate(
    Engine& engine, const Tokenizer& tokenizer, GenerateRequest request) {
  GenerateResult result;
  result.prompt_tokens = int64_t(request.sequence.prompt.size());
  TextStream text(tokenizer, std::move(request.stops), request.skip_special);
  auto emit = [&](const std::string& piece) {
    if (!piece.empty()) {
      result.text += piece;
      if (request.on_text) {
        request.on_text(piece);
      }
    }
  };

  Clock::time_point begin = Clock::now(), first = begin, end = begin;
  Running running{engine, engine.add(std::move(request.sequence))};
  FinishReason finish = FinishReason::none;
  while (finish == FinishReason::none) {
    if (request.cancel && request.cancel->load(std::memory_order_relaxed)) {
      engine.cancel(running.id);
      finish = FinishReason::cancelled;
      break;
    }
    for (const Event& event : engine.step()) {
      finish = event.finish;
      end = Clock::now();
      if (event.token >= 0) {
        if (result.generated_tokens++ == 0) {
          first = end;
        }
        if (finish != FinishReason::eos) {
          emit(text.push(event.token));
        }
      }
    }
    if (text.stopped() && finish == FinishReason::none) {
      engine.cancel(running.id);
      finish = FinishReason::cancelled;
    }
  }
  if (finish == FinishReason::failed) {
    std::rethrow_exception(engine.failure(running.id));
  }
  if (finish == FinishReason::no_memory) {
    throw Error(
        "no memory is left for the KV cache",
        cat("it holds ",
            int64_t(engine.blocks().used()) * kKvBlockSize,
            " positions"),
        "shorten the prompt or give a smaller --max-tokens");
  }
  emit(text.finish());
  result.stop =
      text.stopped() ? StopKind::stop_string
      : finish == FinishReason::eos || finish == FinishReason::complete
          ? StopKind::eos
      : finish == FinishReason::cancelled ? StopKind::cancelled
                                          : StopKind::length;
  result.cached_tokens = engine.num_cached(running.id);
  result.prompt_seconds = seconds_between(begin, first);
  result.decode_seconds = seconds_between(first, end);
  return result;
}

}  // namespace mlxcel
