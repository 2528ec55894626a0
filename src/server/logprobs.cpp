#include "server/logprobs.h"

#include "engine/sampler.h"
#include "text/token_bytes.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace mlxcel::server {

using nlohmann::json;

TokenLogprob logprob_of(std::span<const float> logits, int32_t token, int top) {
  float best = max_value(logits);
  constexpr size_t kStretch = 1024;
  std::array<float, kStretch> weights;
  double sum = 0;
  for (size_t begin = 0; begin < logits.size(); begin += kStretch) {
    size_t count = std::min(kStretch, logits.size() - begin);
    sum += exp_shifted(logits.subspan(begin, count), best, 1, weights.data());
  }
  double total = double(best) + std::log(sum);
  TokenLogprob out{token, float(double(logits[size_t(token)]) - total), {}};
  size_t count = std::min(size_t(std::max(top, 0)), logits.size());
  if (count == 0) {
    return out;
  }
  std::vector<Candidate> candidates;
  take_best(logits, count, candidates);
  for (const Candidate& c : candidates) {
    out.top.emplace_back(c.token, float(double(c.logit) - total));
  }
  return out;
}

namespace {

json token_json(const ServedModel& model, int32_t token, float logprob) {
  std::string raw = token_bytes(*model.tokenizer, token);
  json bytes = json::array();
  for (unsigned char byte : raw) {
    bytes.push_back(byte);
  }
  return {
      {"id", token},
      {"token", to_utf8(raw)},
      {"bytes", bytes},
      {"logprob", logprob}};
}

}  // namespace

json logprobs_json(
    const ServedModel& model, const std::vector<TokenLogprob>& logprobs) {
  json out = json::array();
  for (const TokenLogprob& entry : logprobs) {
    json one = token_json(model, entry.token, entry.logprob);
    one["top_logprobs"] = json::array();
    for (const auto& [token, logprob] : entry.top) {
      one["top_logprobs"].push_back(token_json(model, token, logprob));
    }
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace mlxcel::server
