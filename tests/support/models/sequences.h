// Runs sequences through a model the way the engine does: steps over rows of
// one or many sequences, cut as a test likes.
#pragma once

#include "models/model.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace mlxcel::testing {

using Logits = std::vector<std::vector<float>>;  // [rows][vocab]

class SequenceRunner {
 public:
  SequenceRunner(Backend& backend, Model& model);

  // A new sequence; returns its number.
  int add(std::vector<float> adapter_scales = {});

  // What a sequence contributes to a step. `whole` is the length that
  // longrope's choice follows: the whole prompt's.
  struct Piece {
    int sequence = 0;
    std::vector<int32_t> tokens;
    bool prompt = true;
    int64_t whole = 0;  // 0: up to the piece's end
  };
  // Logits of all rows, in the order of the pieces. Prompt pieces come first.
  // A model of whole sequences reads what came before again, as the engine
  // does.
  Logits run(const std::vector<Piece>& given);

  // A prompt in pieces of `chunk` rows (0: one piece): logits of all rows.
  // Whole sequences are never cut.
  Logits prefill(int sequence, std::span<const int32_t> tokens, int chunk = 0);
  // One generated row.
  std::vector<float> decode(int sequence, int32_t token);

 private:
  struct Sequence {
    int64_t length = 0;
    std::vector<int32_t> tokens;  // for models of whole sequences
    std::vector<int32_t> blocks;
    std::vector<float> scales;
  };
  Backend& backend_;
  Model& model_;
  std::unique_ptr<KvCache> cache_;
  std::vector<Sequence> sequences_;
  int next_block_ = 0;
};

int32_t argmax(const std::vector<float>& values);

}  // namespace mlxcel::testing
