#include "engine/perplexity.h"

#include "core/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace mlxcel {

namespace {

// log(sum(exp(logits))) and the maximum.
struct LogSum {
  double value;
  float max;
};

LogSum log_sum(std::span<const float> logits) {
  float max = max_value(logits);
  double sum = 0;
  for (float logit : logits) {
    sum += std::exp(double(logit) - double(max));
  }
  return {double(max) + std::log(sum), max};
}

}  // namespace

double negative_log_likelihood(std::span<const float> logits, int32_t token) {
  return log_sum(logits).value - double(logits[size_t(token)]);
}

Divergence divergence(
    std::span<const float> base_logits, std::span<const float> logits) {
  double base = log_sum(base_logits).value, other = log_sum(logits).value;
  Divergence out;
  for (size_t i = 0; i < logits.size(); ++i) {
    double log_p = double(base_logits[i]) - base;
    double p = std::exp(log_p);
    if (p > 0) {
      out.kl += p * (log_p - (double(logits[i]) - other));
    }
  }
  out.same_top = argmax(base_logits) == argmax(logits);
  return out;
}

std::vector<int32_t> predicted_positions(int64_t num_tokens, int64_t context) {
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < num_tokens; ++i) {
    if (context < 1 ? i > 0 : i % context != 0) {
      positions.push_back(int32_t(i));
    }
  }
  return positions;
}

void for_each_prediction(
    Engine& engine,
    std::span<const int32_t> tokens,
    int64_t context,
    const std::vector<float>& adapter_scales,
    const std::function<void(int64_t, std::span<const float>)>& use) {
  int64_t total = int64_t(tokens.size());
  int64_t window = context < 1 ? total : context;
  for (int64_t begin = 0; begin < total; begin += window) {
    // The last token of a window predicts nothing in it.
    int64_t length = std::min(window, total - begin) - 1;
    if (length < 1) {
      continue;
    }
    SequenceOptions sequence;
    auto part = tokens.subspan(size_t(begin), size_t(length));
    sequence.prompt.assign(part.begin(), part.end());
    sequence.max_tokens = 0;
    sequence.adapter_scales = adapter_scales;
    sequence.all_prompt_logits = true;
    sequence.on_logits = [&](int64_t position, std::span<const float> logits) {
      use(begin + position + 1, logits);
    };
    int64_t id = engine.add(std::move(sequence));
    while (!engine.idle()) {
      for (const Event& event : engine.step()) {
        if (event.finish == FinishReason::no_memory) {
          throw Error(
              "no memory is left for the KV cache",
              cat("the window has ", length, " tokens"),
              "give a shorter --ctx");
        }
      }
    }
    engine.release(id);
  }
}

LogitsWriter::LogitsWriter(
    const std::filesystem::path& path,
    std::span<const int32_t> tokens,
    std::vector<int32_t> positions,
    int64_t vocab)
    : path_(path.string()), file_(path), rows_left_(int64_t(positions.size())) {
  // The rows come as they are computed, so the header is written by hand.
  uint64_t logit_bytes =
      uint64_t(positions.size()) * uint64_t(vocab) * sizeof(float);
  uint64_t position_bytes = positions.size() * sizeof(int32_t);
  uint64_t token_bytes = tokens.size() * sizeof(int32_t);
  uint64_t positions_end = token_bytes + position_bytes;
  nlohmann::ordered_json header;
  header["tokens"] = {
      {"dtype", "I32"},
      {"shape", {tokens.size()}},
      {"data_offsets", {0, token_bytes}}};
  header["positions"] = {
      {"dtype", "I32"},
      {"shape", {positions.size()}},
      {"data_offsets", {token_bytes, positions_end}}};
  header["logits"] = {
      {"dtype", "F32"},
      {"shape", {int64_t(positions.size()), vocab}},
      {"data_offsets", {positions_end, positions_end + logit_bytes}}};
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  uint64_t length = text.size();
  file_.write(&length, sizeof length);
  file_.write(text.data(), text.size());
  file_.write(tokens.data(), token_bytes);
  file_.write(positions.data(), position_bytes);
}

void LogitsWriter::add(std::span<const float> logits) {
  file_.write(logits.data(), logits.size_bytes());
  --rows_left_;
}

void LogitsWriter::finish() {
  if (rows_left_ != 0) {
    throw Error(
        cat("incomplete predictions for ", path_),
        cat(rows_left_, " rows are missing"),
        "run the command again");
  }
  file_.commit();
}

}  // namespace mlxcel
