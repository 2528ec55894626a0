#include "ops/graph/moe.h"

namespace mlxcel::graph {

namespace {

// From this many products on, rows are sorted by expert: the device then reads
// each expert's weights once (mlx-lm's bound).
constexpr int kSortedProducts = 64;

}  // namespace

mx::array mixture(
    const Context& context,
    const mx::array& x,
    const mx::array& logits,
    const MoeWeights& weights) {
  int rows = x.shape(0), hidden = x.shape(1), best = weights.experts_per_token;
  mx::array scores = mx::softmax(mx::astype(logits, mx::float32), 1, true);
  mx::array order = mx::argpartition(mx::negative(scores), best - 1, 1);
  mx::array experts = mx::slice(order, {0, 0}, {rows, best});
  mx::array shares = mx::take_along_axis(scores, experts, 1);
  if (weights.routing == Routing::softmax_renormalized) {
    shares = mx::divide(shares, mx::sum(shares, 1, true));
  }

  // One row a product: `source` is its row of x, `ids` its expert.
  mx::array ids = mx::astype(mx::flatten(experts), mx::uint32);
  bool sorted = rows * best >= kSortedProducts;
  mx::array source = mx::floor_divide(
      mx::arange(rows * best, mx::int32), mx::array(best, mx::int32));
  std::optional<mx::array> back;
  if (sorted) {
    mx::array by_expert = mx::argsort(ids);
    back = mx::argsort(by_expert);
    ids = mx::take(ids, by_expert);
    source = mx::take(source, by_expert);
  }
  const auto& up = static_cast<const GraphExperts&>(*weights.up);
  const auto& down = static_cast<const GraphExperts&>(*weights.down);
  mx::array y = up.apply(context, mx::take(x, source, 0), ids, sorted);
  y = down.apply(context, gated(weights.activation, y), ids, sorted);
  if (back) {
    y = mx::take(y, *back, 0);
  }
  y = mx::multiply(
      mx::reshape(y, {rows, best, hidden}),
      mx::expand_dims(context.to_compute(shares), 2));
  return mx::sum(y, 1);
}

}  // namespace mlxcel::graph
