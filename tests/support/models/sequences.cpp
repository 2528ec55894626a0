#include "support/models/sequences.h"

#include <algorithm>

namespace mlxcel::testing {

SequenceRunner::SequenceRunner(Backend& backend, Model& model)
    : backend_(backend),
      model_(model),
      cache_(backend.make_kv_cache(model.kv_cache_spec())) {}

int SequenceRunner::add(std::vector<float> adapter_scales) {
  sequences_.push_back({.scales = std::move(adapter_scales)});
  cache_->reserve_states(int(sequences_.size()));
  return int(sequences_.size()) - 1;
}

Logits SequenceRunner::run(const std::vector<Piece>& given) {
  std::vector<Piece> pieces = given;
  Step step;
  for (Piece& piece : pieces) {
    Sequence& sequence = sequences_[size_t(piece.sequence)];
    size_t outputs = piece.tokens.size();
    if (model_.context_traits().whole_sequence) {
      auto& tokens = sequence.tokens;
      tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
      piece.tokens = tokens;
      piece.prompt = true;
      sequence.length = 0;
      if (cache_->num_states() > 0) {
        cache_->clear_state(piece.sequence);
      }
    }
    int64_t end = sequence.length + int64_t(piece.tokens.size());
    while (int64_t(sequence.blocks.size()) * kKvBlockSize < end) {
      sequence.blocks.push_back(next_block_++);
    }
    step.segments.push_back(
        {.first_row = step.num_rows(),
         .num_rows = int(piece.tokens.size()),
         .position = sequence.length,
         .prompt = piece.prompt,
         .rope_length = piece.whole > 0 ? piece.whole : end,
         .blocks = sequence.blocks,
         .state = cache_->num_states() > 0 ? piece.sequence : -1,
         .adapter_scales = sequence.scales});
    step.tokens.insert(
        step.tokens.end(), piece.tokens.begin(), piece.tokens.end());
    step.num_prompt_rows += piece.prompt ? int(piece.tokens.size()) : 0;
    sequence.length = end;
    for (int i = int(outputs); i > 0; --i) {
      step.output_rows.push_back(step.num_rows() - i);
    }
  }
  cache_->reserve(next_block_);
  Tensor logits = model_.forward(step, *cache_);
  std::vector<float> flat(size_t(logits.rows() * logits.cols()));
  backend_.read(logits, flat.data());
  Logits out;
  for (int64_t row = 0; row < logits.rows(); ++row) {
    auto begin = flat.begin() + row * logits.cols();
    out.emplace_back(begin, begin + logits.cols());
  }
  return out;
}

Logits SequenceRunner::prefill(
    int sequence, std::span<const int32_t> tokens, int chunk) {
  Logits out;
  bool cut = chunk > 0 && !model_.context_traits().whole_sequence;
  size_t size = cut ? size_t(chunk) : tokens.size();
  for (size_t at = 0; at < tokens.size(); at += size) {
    std::span<const int32_t> part =
        tokens.subspan(at, std::min(size, tokens.size() - at));
    Logits rows = run(
        {{.sequence = sequence,
          .tokens = {part.begin(), part.end()},
          .whole = int64_t(tokens.size())}});
    out.insert(out.end(), rows.begin(), rows.end());
  }
  return out;
}

std::vector<float> SequenceRunner::decode(int sequence, int32_t token) {
  return run({{.sequence = sequence, .tokens = {token}, .prompt = false}})[0];
}

int32_t argmax(const std::vector<float>& values) {
  return int32_t(
      std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace mlxcel::testing
