#include "ops/cpu/moe_routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace mlxcel::cpu {

namespace {

// Chooses the experts of one row after the other.
class Router {
 public:
  Router(const MoeWeights& weights, int count)
      : routing_(weights.routing),
        bias_(weights.selection_bias),
        factors_(weights.share_scale),
        count_(size_t(count)),
        per_token_(size_t(weights.experts_per_token)),
        scores_(count_),
        keys_(count_),
        order_(count_) {}

  // Best first; equal ones by number.
  void choose(const float* logits, int* experts, float* shares) {
    if (routing_.scores == RouterScores::sparse_mixer) {
      mix_sparsely(logits, experts, shares);
    } else {
      choose_by_score(logits, experts, shares);
    }
    for (size_t i = 0; i < per_token_ && !factors_.empty(); ++i) {
      shares[i] *= factors_[size_t(experts[i])];
    }
  }

 private:
  static constexpr float kNever = -std::numeric_limits<float>::infinity();

  void choose_by_score(const float* logits, int* experts, float* shares) {
    score(logits);
    for (size_t e = 0; e < count_; ++e) {
      float key = scores_[e] + (bias_.empty() ? 0 : bias_[e]);
      // Numbers that are none come last, so that the order is always one.
      keys_[e] = std::isnan(key) ? kNever : key;
    }
    if (routing_.groups.kept < routing_.groups.count) {
      keep_groups();
    }
    sort(per_token_);
    float sum = 0;
    for (size_t i = 0; i < per_token_; ++i) {
      experts[i] = order_[i];
      shares[i] = scores_[size_t(order_[i])];
      sum += shares[i];
    }
    float factor = routing_.scale;
    if (routing_.shares == Shares::renormalized) {
      factor /= std::max(sum, routing_.least_sum);
    }
    for (size_t i = 0; i < per_token_; ++i) {
      shares[i] *= factor;
    }
  }

  void score(const float* logits) {
    if (routing_.scores == RouterScores::sigmoid) {
      for (size_t e = 0; e < count_; ++e) {
        scores_[e] = 1 / (1 + std::exp(-logits[e]));
      }
      return;
    }
    float highest = kNever;
    for (size_t e = 0; e < count_; ++e) {
      highest = std::max(highest, logits[e]);
    }
    float sum = 0;
    for (size_t e = 0; e < count_; ++e) {
      scores_[e] = std::exp(logits[e] - highest);
      sum += scores_[e];
    }
    for (float& value : scores_) {
      value /= sum;
    }
  }

  void sort(size_t best) {
    std::iota(order_.begin(), order_.end(), 0);
    std::partial_sort(
        order_.begin(),
        order_.begin() + ptrdiff_t(best),
        order_.end(),
        [&](int a, int b) {
          float left = keys_[size_t(a)], right = keys_[size_t(b)];
          return left != right ? left > right : a < b;
        });
  }

  // Experts outside the best groups can no longer be chosen.
  void keep_groups() {
    size_t size = count_ / size_t(routing_.groups.count);
    std::vector<std::pair<float, size_t>> groups;
    for (size_t g = 0; g < size_t(routing_.groups.count); ++g) {
      float first = kNever, second = kNever;
      for (size_t e = g * size; e < (g + 1) * size; ++e) {
        if (keys_[e] > first) {
          second = std::exchange(first, keys_[e]);
        } else {
          second = std::max(second, keys_[e]);
        }
      }
      bool two = routing_.groups.score == GroupScore::best_two;
      groups.emplace_back(-(two ? first + second : first), g);
    }
    std::sort(groups.begin(), groups.end());
    for (size_t i = size_t(routing_.groups.kept); i < groups.size(); ++i) {
      size_t begin = groups[i].second * size;
      std::fill_n(keys_.begin() + ptrdiff_t(begin), size, kNever);
    }
  }

  void mix_sparsely(const float* logits, int* experts, float* shares) {
    std::copy_n(logits, count_, keys_.begin());
    for (float& key : keys_) {
      key = std::isnan(key) ? kNever : key;
    }
    for (size_t i = 0; i < per_token_; ++i) {
      sort(1);
      auto best = size_t(order_[0]);
      float highest = keys_[best], sum = 0;
      for (size_t e = 0; e < count_; ++e) {
        float reach = std::max(std::fabs(logits[e]), highest);
        if (keys_[e] != kNever &&
            (highest - logits[e]) / reach <= 2 * routing_.tolerance) {
          sum += std::exp(logits[e] - highest);
        }
      }
      experts[i] = int(best);
      shares[i] = routing_.scale / sum;
      keys_[best] = kNever;
    }
  }

  const Routing& routing_;
  const std::vector<float>& bias_;
  const std::vector<float>& factors_;
  size_t count_, per_token_;
  std::vector<float> scores_, keys_;
  std::vector<int> order_;
};

}  // namespace

Routes route(const Tensor& logits, const MoeWeights& weights) {
  int count = int(logits.cols());
  Routes routes;
  routes.per_token = weights.experts_per_token;
  size_t pairs = size_t(logits.rows()) * size_t(routes.per_token);
  routes.experts.resize(pairs);
  routes.shares.resize(pairs);
  Router router(weights, count);
  for (int64_t row = 0; row < logits.rows(); ++row) {
    int64_t at = row * routes.per_token;
    router.choose(
        data(logits) + row * count,
        routes.experts.data() + at,
        routes.shares.data() + at);
  }
  return routes;
}

std::vector<Group> group_rows(
    const Routes& routes,
    int experts,
    int prompt_rows,
    std::vector<int>& places) {
  std::vector<Group> all(static_cast<size_t>(experts));
  places.assign(routes.experts.size(), -1);
  for (size_t i = 0; i < places.size(); ++i) {
    if (routes.experts[i] >= experts) {
      continue;
    }
    Group& group = all[size_t(routes.experts[i])];
    int row = int(i) / routes.per_token;
    places[i] = int(group.rows.size());
    group.rows.push_back(row);
    group.prompt_rows += row < prompt_rows ? 1 : 0;
  }
  int first = 0;
  for (int e = 0; e < experts; ++e) {
    all[size_t(e)].expert = e;
    all[size_t(e)].first = first;
    first += int(all[size_t(e)].rows.size());
  }
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] >= 0) {
      places[i] += all[size_t(routes.experts[i])].first;
    }
  }
  std::erase_if(all, [](const Group& group) { return group.rows.empty(); });
  return all;
}

}  // namespace mlxcel::cpu
