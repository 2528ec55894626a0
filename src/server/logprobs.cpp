#include "server/logprobs.h"

#include <algorithm>
#include <cmath>

namespace mlxcel::server {

using nlohmann::json;

TokenLogprob logprob_of(std::span<const float> logits, int32_t token, int top) {
  float best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) {
    sum += double(std::exp(logit - best));
  }
  double total = double(best) + std::log(sum);
  auto logprob = [&](int32_t id) {
    return float(double(logits[size_t(id)]) - total);
  };
  TokenLogprob out{token, logprob(token), {}};
  size_t count = std::min(size_t(std::max(top, 0)), logits.size());
  if (count == 0) {
    return out;
  }
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = int32_t(i);
  }
  auto better = [&](int32_t left, int32_t right) {
    float a = logits[size_t(left)], b = logits[size_t(right)];
    return a != b ? a > b : left < right;
  };
  auto end = ids.begin() + ptrdiff_t(count);
  std::nth_element(ids.begin(), end - 1, ids.end(), better);
  std::sort(ids.begin(), end, better);
  for (auto id = ids.begin(); id != end; ++id) {
    out.top.emplace_back(*id, logprob(*id));
  }
  return out;
}

namespace {

json token_json(const ServedModel& model, int32_t token, float logprob) {
  std::string text = model.piece(token);
  json bytes = json::array();
  for (unsigned char byte : text) {
    bytes.push_back(byte);
  }
  return {
      {"id", token}, {"token", text}, {"bytes", bytes}, {"logprob", logprob}};
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
