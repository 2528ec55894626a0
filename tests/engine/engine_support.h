// An engine's sequences run to their ends.
#pragma once

#include "engine/engine.h"
#include "engine/fake_model.h"

#include <gtest/gtest.h>

#include <map>

namespace mlxcel::testing {

struct EngineTest : ::testing::Test {
  FakeModel model;
  FakeBackend backend;

  std::vector<int32_t> answer(Engine& engine, int64_t id) {
    std::span<const int32_t> tokens = engine.generated(id);
    return {tokens.begin(), tokens.end()};
  }
  static std::map<int64_t, FinishReason> run(Engine& engine) {
    std::map<int64_t, FinishReason> ends;
    while (!engine.idle()) {
      for (const Event& event : engine.step()) {
        if (event.finish != FinishReason::none) {
          ends[event.sequence] = event.finish;
        }
      }
    }
    return ends;
  }
};

// What a server asks for: a cache of `blocks` blocks.
inline EngineOptions caching(int64_t blocks = 1000) {
  EngineOptions options;
  options.prefix_cache = {
      .bytes = blocks * kKvBlockSize * int64_t(sizeof(int32_t)),
      .min_positions = 1};
  return options;
}

}  // namespace mlxcel::testing
