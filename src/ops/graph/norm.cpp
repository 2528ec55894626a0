#include "ops/graph/norm.h"

#include "core/error.h"

namespace mlxcel::graph {

namespace {

std::optional<mx::array> read_vector(
    const std::optional<WeightTensor>& tensor, float offset) {
  if (!tensor) {
    return std::nullopt;
  }
  std::vector<float> values(size_t(element_count(tensor->shape)));
  read_as_f32(*tensor, values.data());
  for (float& number : values) {
    number += offset;
  }
  return mx::array(values.data(), {int_of(int64_t(values.size()))});
}

}  // namespace

GraphNorm::GraphNorm(Context& context, const NormWeights& weights)
    : Norm(weights.size),
      kind_(weights.kind),
      eps_(weights.eps),
      parts_(int_of(weights.parts)),
      // weight + offset rounded to 16 bits would be off in every row alike.
      wide_(weights.weight_offset != 0 && context.compute != mx::float32),
      weight_(read_vector(weights.weight, weights.weight_offset)),
      bias_(read_vector(weights.bias, 0)) {
  if (!weight_ && weights.weight_offset != 0) {
    weight_ = mx::full({int_of(weights.size)}, 1 + weights.weight_offset);
  }
  if (context.cuda && kind_ == NormKind::rms && !bias_) {
    mx::array ones = mx::full({int_of(weights.size)}, 1.0f);
    factors_ =
        mx::concatenate({weight_ ? *weight_ : ones, mx::full({1}, eps_)}, 0);
    factors_->eval();
  }
  for (std::optional<mx::array>* array : {&weight_, &bias_}) {
    if (*array && !wide_) {
      *array = context.to_compute(**array);
    }
    if (*array) {
      (*array)->eval();
    }
  }
}

mx::array GraphNorm::apply_to_parts(const mx::array& x) const {
  mx::Shape parted = x.shape();
  parted.back() /= parts_;
  parted.insert(parted.end() - 1, parts_);
  mx::array y = mx::reshape(x, parted);
  y = kind_ == NormKind::rms
          ? mx::fast::rms_norm(y, std::nullopt, eps_)
          : mx::fast::layer_norm(y, std::nullopt, std::nullopt, eps_);
  y = mx::reshape(y, x.shape());
  if (weight_) {
    y = mx::multiply(y, *weight_);
  }
  return bias_ ? mx::add(y, *bias_) : y;
}

mx::array GraphNorm::apply(const mx::array& x) const {
  mx::array input = wide_ ? mx::astype(x, mx::float32) : x;
  if (parts_ > 1) {
    mx::array y = apply_to_parts(input);
    return y.dtype() == x.dtype() ? y : mx::astype(y, x.dtype());
  }
  mx::array y = kind_ == NormKind::rms
                    ? mx::fast::rms_norm(input, weight_, eps_)
                    : mx::fast::layer_norm(input, weight_, bias_, eps_);
  if (kind_ == NormKind::rms && bias_) {
    y = mx::add(y, *bias_);
  }
  return y.dtype() == x.dtype() ? y : mx::astype(y, x.dtype());
}

namespace {

// MLX takes the rotation as positions divided by periods.
mx::array periods(const std::vector<float>& inv_freq) {
  std::vector<float> values;
  for (float frequency : inv_freq) {
    values.push_back(1 / frequency);
  }
  return mx::array(values.data(), {int(values.size())});
}

}  // namespace

// MLX 0.32's kernel for GPUs asks for more threads along one axis than CUDA has
// when fewer than 32 dimensions of many rows turn.
GraphRope::GraphRope(Context& context, const RopeTable& table)
    : Rope(table.dims),
      interleaved_(table.interleaved),
      by_parts_(context.gpu && table.dims < 32),
      switch_length_(table.switch_length),
      short_{periods(table.inv_freq), table.scale},
      long_{periods(table.long_inv_freq), table.long_scale} {
  if (switch_length_ == 0) {
    factors_ =
        mx::concatenate({short_.periods, mx::array({short_.scale}, {1})});
    factors_->eval();
  }
}

mx::array GraphRope::rotate(
    const mx::array& x,
    const mx::array& positions,
    const Factors& factors) const {
  // Each row is a batch of one position, so one call turns rows of many
  // sequences: [rows, heads, 1, head_dim].
  mx::array y = by_parts_ ? rotate_by_parts(x, positions, factors.periods)
                          : mx::squeeze(
                                mx::fast::rope(
                                    mx::expand_dims(x, 2),
                                    dims(),
                                    interleaved_,
                                    std::nullopt,
                                    1.0f,
                                    positions,
                                    factors.periods),
                                2);
  if (factors.scale == 1) {
    return y;
  }
  int head_dim = x.shape(2);
  std::vector<float> scales(size_t(head_dim), 1.0f);
  std::fill_n(scales.begin(), dims(), factors.scale);
  return mx::astype(
      mx::multiply(
          mx::astype(y, mx::float32), mx::array(scales.data(), {head_dim})),
      x.dtype());
}

// (a, b) -> (a cos - b sin, a sin + b cos) with the angle position / period.
mx::array GraphRope::rotate_by_parts(
    const mx::array& x,
    const mx::array& positions,
    const mx::array& periods) const {
  int rows = x.shape(0), heads = x.shape(1), dim = x.shape(2);
  int pairs = dims() / 2;
  mx::array angles = mx::divide(
      mx::reshape(mx::astype(positions, mx::float32), {rows, 1, 1}), periods);
  mx::array cos = mx::cos(angles), sin = mx::sin(angles);
  // The pair's halves lie side by side, or half of the rotated part apart.
  mx::Shape split = interleaved_ ? mx::Shape{rows, heads, pairs, 2}
                                 : mx::Shape{rows, heads, 2, pairs};
  int axis = interleaved_ ? 3 : 2;
  std::vector<mx::array> halves = mx::split(
      mx::reshape(
          mx::astype(
              mx::slice(x, {0, 0, 0}, {rows, heads, dims()}), mx::float32),
          split),
      2,
      axis);
  mx::array a = mx::squeeze(halves[0], axis), b = mx::squeeze(halves[1], axis);
  mx::array y = mx::astype(
      mx::reshape(
          mx::stack(
              {mx::subtract(mx::multiply(a, cos), mx::multiply(b, sin)),
               mx::add(mx::multiply(a, sin), mx::multiply(b, cos))},
              axis),
          {rows, heads, dims()}),
      x.dtype());
  if (dims() == dim) {
    return y;
  }
  return mx::concatenate(
      {y, mx::slice(x, {0, 0, dims()}, {rows, heads, dim})}, 2);
}

mx::array GraphRope::apply(const mx::array& x, const Plan& plan) const {
  if (switch_length_ == 0) {
    return rotate(x, plan.positions, short_);
  }
  // Runs of rows on the same side of the switch.
  std::vector<mx::array> pieces;
  for (size_t i = 0; i < plan.segments.size();) {
    bool is_long = plan.segments[i].rope_length > switch_length_;
    int begin = plan.segments[i].first_row;
    int end = begin;
    for (; i < plan.segments.size() &&
           (plan.segments[i].rope_length > switch_length_) == is_long;
         ++i) {
      end = plan.segments[i].first_row + plan.segments[i].num_rows;
    }
    const Factors& factors = is_long ? long_ : short_;
    if (begin == 0 && end == x.shape(0)) {
      return rotate(x, plan.positions, factors);
    }
    pieces.push_back(rotate(
        mx::slice(x, {begin, 0, 0}, {end, x.shape(1), x.shape(2)}),
        mx::slice(plan.positions, {begin}, {end}),
        factors));
  }
  return mx::concatenate(pieces, 0);
}

}  // namespace mlxcel::graph
