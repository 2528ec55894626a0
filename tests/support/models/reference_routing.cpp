#include "support/models/reference_routing.h"

#include <algorithm>
#include <cmath>

namespace mlxcel::testing::reference {

std::vector<std::pair<size_t, double>> choose(
    const Row& logits, const MoeWeights& weights) {
  const Routing& routing = weights.routing;
  size_t count = logits.size();
  auto best = size_t(weights.experts_per_token);
  std::vector<std::pair<size_t, double>> chosen;
  std::vector<bool> open(count, true);
  auto top = [&](const Row& keys) {
    size_t found = count;
    for (size_t e = 0; e < count; ++e) {
      if (open[e] && (found == count || keys[e] > keys[found])) {
        found = e;
      }
    }
    return found;
  };
  if (routing.scores == RouterScores::sparse_mixer) {
    for (size_t i = 0; i < best; ++i) {
      size_t e = top(logits);
      double sum = 0;
      for (size_t other = 0; other < count; ++other) {
        double reach = std::max(std::abs(logits[other]), logits[e]);
        if (open[other] && (logits[e] - logits[other]) / reach <=
                               2 * double(routing.tolerance)) {
          sum += std::exp(logits[other] - logits[e]);
        }
      }
      chosen.emplace_back(e, 1 / sum);
      open[e] = false;
    }
  } else {
    Row scores(count), keys(count);
    double all = 0;
    for (double logit : logits) {
      all += std::exp(logit);
    }
    for (size_t e = 0; e < count; ++e) {
      scores[e] = routing.scores == RouterScores::sigmoid
                      ? 1 / (1 + std::exp(-logits[e]))
                      : std::exp(logits[e]) / all;
      keys[e] = scores[e];
      if (!weights.selection_bias.empty()) {
        keys[e] += double(weights.selection_bias[e]);
      }
    }
    // Closes the worst group until only those that are kept are left.
    const ExpertGroups& groups = routing.groups;
    size_t size = count / size_t(groups.count);
    for (int closed = groups.kept; closed < groups.count; ++closed) {
      size_t worst = count;
      double least = INFINITY;
      for (size_t g = 0; g < count; g += size) {
        Row group(
            keys.begin() + ptrdiff_t(g), keys.begin() + ptrdiff_t(g + size));
        std::sort(group.rbegin(), group.rend());
        bool two = groups.score == GroupScore::best_two && size > 1;
        double score = group[0] + (two ? group[1] : 0);
        if (open[g] && score < least) {
          least = score;
          worst = g;
        }
      }
      std::fill_n(open.begin() + ptrdiff_t(worst), size, false);
    }
    for (size_t i = 0; i < best; ++i) {
      size_t e = top(keys);
      chosen.emplace_back(e, scores[e]);
      open[e] = false;
    }
  }
  double sum = 0;
  for (const auto& [e, share] : chosen) {
    sum += share;
  }
  for (auto& [e, share] : chosen) {
    if (routing.shares == Shares::renormalized) {
      share /= std::max(sum, double(routing.least_sum));
    }
    share *= double(routing.scale);
  }
  return chosen;
}

}  // namespace mlxcel::testing::reference
