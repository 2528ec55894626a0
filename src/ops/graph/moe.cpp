#include "ops/graph/moe.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace mlxcel::graph {

namespace {

// From this many products on, rows are sorted by expert: the device then reads
// each expert's weights once (mlx-lm's bound).
constexpr int kSortedProducts = 64;

// Experts outside the best groups can no longer be chosen.
mx::array keep_groups(const mx::array& keys, const Routing& routing) {
  int rows = keys.shape(0), groups = routing.groups.count;
  int size = keys.shape(1) / groups;
  mx::array grouped = mx::reshape(keys, {rows, groups, size});
  int counted =
      routing.groups.score == GroupScore::best_two ? std::min(2, size) : 1;
  mx::array ranked = mx::sort(mx::negative(grouped), 2);
  mx::array score =
      mx::sum(mx::slice(ranked, {0, 0, 0}, {rows, groups, counted}), 2);
  // A group's rank is its place in the order of scores, best first.
  mx::array rank = mx::argsort(mx::argsort(score, 1), 1);
  mx::array kept = mx::less(rank, mx::array(uint32_t(routing.groups.kept)));
  return mx::reshape(
      mx::where(
          mx::expand_dims(kept, 2),
          grouped,
          mx::array(-std::numeric_limits<float>::infinity())),
      {rows, groups * size});
}

struct Choice {
  mx::array experts, shares;  // [rows, experts a token]
};

Choice mix_sparsely(const mx::array& logits, const MoeWeights& weights) {
  mx::array never(-std::numeric_limits<float>::infinity());
  mx::array keys = logits;
  std::vector<mx::array> experts, shares;
  for (int i = 0; i < weights.experts_per_token; ++i) {
    mx::array best = mx::expand_dims(mx::argmax(keys, 1), 1);
    mx::array highest = mx::take_along_axis(keys, best, 1);
    mx::array reach = mx::maximum(mx::abs(logits), highest);
    mx::array far = mx::greater(
        mx::divide(mx::subtract(highest, logits), reach),
        mx::array(2 * weights.routing.tolerance));
    mx::array near = mx::softmax(mx::where(far, never, keys), 1, true);
    experts.push_back(best);
    shares.push_back(mx::take_along_axis(near, best, 1));
    keys = mx::put_along_axis(keys, best, never, 1);
  }
  return {mx::concatenate(experts, 1), mx::concatenate(shares, 1)};
}

Choice choose(const mx::array& raw, const MoeWeights& weights) {
  const Routing& routing = weights.routing;
  mx::array logits = mx::astype(raw, mx::float32);
  int rows = logits.shape(0), best = weights.experts_per_token;
  Choice out = [&]() -> Choice {
    if (routing.scores == RouterScores::sparse_mixer) {
      return mix_sparsely(logits, weights);
    }
    mx::array scores = routing.scores == RouterScores::sigmoid
                           ? mx::sigmoid(logits)
                           : mx::softmax(logits, 1, true);
    mx::array keys = scores;
    if (!weights.selection_bias.empty()) {
      keys = mx::add(
          keys,
          mx::array(
              weights.selection_bias.data(),
              {int(weights.selection_bias.size())}));
    }
    if (routing.groups.kept < routing.groups.count) {
      keys = keep_groups(keys, routing);
    }
    mx::array order = mx::argpartition(mx::negative(keys), best - 1, 1);
    mx::array experts = mx::slice(order, {0, 0}, {rows, best});
    return {experts, mx::take_along_axis(scores, experts, 1)};
  }();
  if (routing.shares == Shares::renormalized) {
    mx::array sum =
        mx::maximum(mx::sum(out.shares, 1, true), mx::array(routing.least_sum));
    out.shares = mx::divide(out.shares, sum);
  }
  if (routing.scale != 1) {
    out.shares = mx::multiply(out.shares, mx::array(routing.scale));
  }
  if (!weights.share_scale.empty()) {
    mx::array factors(
        weights.share_scale.data(), {int(weights.share_scale.size())});
    out.shares = mx::multiply(out.shares, mx::take(factors, out.experts));
  }
  return out;
}

}  // namespace

mx::array mixture(
    const Context& context,
    const mx::array& x,
    const mx::array& logits,
    const MoeWeights& weights) {
  int rows = x.shape(0), hidden = x.shape(1), best = weights.experts_per_token;
  auto [experts, shares] = choose(logits, weights);

  mx::array ids = mx::astype(experts, mx::uint32);
  std::optional<mx::array> own_share, taken;
  if (weights.identity_experts > 0) {
    // They take no part in the products: their shares are x's.
    mx::array real = mx::less(ids, mx::array(uint32_t(weights.up->count())));
    mx::array zero(0.0f);
    own_share = mx::sum(mx::where(real, zero, shares), 1, true);
    shares = mx::where(real, shares, zero);
    ids = mx::where(real, ids, mx::array(uint32_t(0)));
    taken = mx::reshape(real, {rows * best, 1});
  }

  // One row a product: `source` is its row of x, `ids` its expert.
  ids = mx::flatten(ids);
  bool sorted = rows * best >= kSortedProducts;
  mx::array source = mx::floor_divide(
      mx::arange(rows * best, mx::int32), mx::array(best, mx::int32));
  mx::array factors = context.to_compute(mx::reshape(shares, {rows * best, 1}));
  bool on_input = weights.routing.target == RouterTarget::input;
  std::optional<mx::array> back;
  mx::array input_factors = factors;
  if (sorted) {
    mx::array by_expert = mx::argsort(ids);
    back = mx::argsort(by_expert);
    ids = mx::take(ids, by_expert);
    source = mx::take(source, by_expert);
    input_factors = mx::take(factors, by_expert, 0);
  }
  const auto& up = static_cast<const GraphExperts&>(*weights.up);
  const auto& down = static_cast<const GraphExperts&>(*weights.down);
  mx::array read = mx::take(x, source, 0);
  if (on_input) {
    read = mx::multiply(read, input_factors);
  }
  mx::array y = up.apply(context, read, ids, sorted);
  y = weights.gated ? gated(weights.activation, weights.clamp, y)
                    : activate(weights.activation, y);
  y = down.apply(context, y, ids, sorted);
  if (back) {
    y = mx::take(y, *back, 0);
  }
  if (!on_input) {
    y = mx::multiply(y, factors);
  } else if (taken) {
    y = mx::where(*taken, y, mx::array(0.0f, y.dtype()));
  }
  y = mx::sum(mx::reshape(y, {rows, best, hidden}), 1);
  return own_share ? mx::add(y, mx::multiply(x, context.to_compute(*own_share)))
                   : y;
}

}  // namespace mlxcel::graph
