#include "ops/graph/recurrence.h"

#include "ops/graph/norm.h"

#include <cmath>

namespace mlxcel::graph {

namespace {

mx::array numbers(const Constants* constants) {
  return static_cast<const GraphConstants*>(constants)->values;
}

mx::array silu(const mx::array& x) {
  return mx::multiply(x, mx::sigmoid(x));
}

mx::array softplus(const mx::array& x) {
  return mx::logaddexp(x, mx::array(0.0f));
}

// Entries [first, first + count) of an axis.
mx::array part(const mx::array& x, int axis, int64_t first, int64_t count) {
  mx::Shape begin(x.ndim(), 0), end(x.shape());
  begin[size_t(axis)] = int_of(first);
  end[size_t(axis)] = int_of(first + count);
  return mx::slice(x, begin, end);
}

// Segments of one length: `batch` of them, `rows` rows each.
class Group {
 public:
  Group(const Step& step, size_t first, size_t count, const mx::array* states)
      : first_row(step.segments[first].first_row),
        batch(int(count)),
        rows(step.segments[first].num_rows) {
    std::vector<int32_t> ids;
    std::vector<float> later;
    for (size_t i = first; i < first + count; ++i) {
      ids.push_back(step.segments[i].state);
      later.push_back(step.segments[i].position > 0 ? 1.0f : 0.0f);
    }
    slots = mx::array(ids.data(), {batch}, mx::int32);
    continues = mx::array(later.data(), {batch, 1});
    if (states != nullptr) {
      state = mx::take(*states, slots, 0);
    }
  }

  // Columns of an input as [batch, rows, count].
  mx::array input(const Tensor* tensor, int64_t first, int64_t count) const {
    mx::array x = part(value(*tensor), 0, first_row, int64_t(batch) * rows);
    x = mx::astype(part(x, 1, first, count), mx::float32);
    return mx::reshape(x, {batch, rows, int_of(count)});
  }

  // A piece of the states as [batch, dims...], and its new content.
  mx::array read(int64_t first, std::vector<int64_t> dims) const {
    mx::Shape shape{batch};
    int64_t size = 1;
    for (int64_t dim : dims) {
      shape.push_back(int_of(dim));
      size *= dim;
    }
    return mx::reshape(part(state, 1, first, size), shape);
  }
  void write(int64_t first, const mx::array& content) {
    int size = int_of(int64_t(content.size()) / batch);
    state = mx::slice_update(
        state,
        mx::reshape(content, {batch, size}),
        mx::Shape{0, int_of(first)},
        mx::Shape{batch, int_of(first) + size});
  }

  // x [batch, rows, channels]
  mx::array convolve(const Convolution& op, const mx::array& x) {
    int64_t before = op.taps - 1;
    mx::array all = x;
    if (before > 0) {
      all = mx::concatenate({read(op.state, {before, op.channels}), x}, 1);
      write(op.state, part(all, 1, rows, before));
    }
    mx::array weight =
        mx::reshape(numbers(op.weight), {op.taps, 1, int_of(op.channels)});
    mx::array y = mx::multiply(part(all, 1, 0, rows), part(weight, 0, 0, 1));
    for (int j = 1; j < op.taps; ++j) {
      y = mx::add(
          y, mx::multiply(part(all, 1, j, rows), part(weight, 0, j, 1)));
    }
    return op.bias != nullptr ? mx::add(y, numbers(op.bias)) : y;
  }

  // Row t of x [batch, rows, ...] as [batch, ...].
  static mx::array at(const mx::array& x, int t) {
    return mx::squeeze(part(x, 1, t, 1), 1);
  }

  int first_row, batch, rows;
  mx::array slots = mx::array(0);
  mx::array continues = mx::array(0);  // [batch, 1]: 0 at position 0
  mx::array state = mx::array(0.0f);   // [batch, values of the layer]
};

// One step of a head's matrix [batch, heads, keys, values]; all other inputs
// [batch, heads, keys or values], decays [batch, heads, keys or 1].
mx::array column(const mx::array& x) {
  return mx::expand_dims(x, -1);
}
mx::array row(const mx::array& x) {
  return mx::expand_dims(x, -2);
}
mx::array product(const mx::array& x, const mx::array& matrix) {
  return mx::squeeze(mx::matmul(row(x), matrix), -2);
}

mx::array split_heads(const mx::array& x, int64_t heads) {
  return mx::reshape(
      x, {x.shape(0), x.shape(1), int_of(heads), x.shape(2) / int_of(heads)});
}

// y, z: [batch, rows, features]
mx::array gate(const mx::array& y, const mx::array& z, const GatedNorm& op) {
  mx::array out = y;
  if (op.gate == GateForm::silu || op.gate == GateForm::norm_of_gated) {
    out = mx::multiply(out, silu(z));
  }
  if (op.gate == GateForm::silu) {
    return out;
  }
  int features = y.shape(2), group = int_of(op.group);
  mx::array grouped =
      mx::reshape(out, {y.shape(0), y.shape(1), features / group, group});
  mx::array weight = numbers(op.weight);
  weight = mx::reshape(weight, {int(weight.size()) / group, group});
  grouped =
      mx::multiply(mx::fast::rms_norm(grouped, std::nullopt, op.eps), weight);
  out = mx::reshape(grouped, y.shape());
  if (op.gate == GateForm::silu_of_norm) {
    out = mx::multiply(out, silu(z));
  } else if (op.gate == GateForm::sigmoid_of_norm) {
    out = mx::multiply(out, mx::sigmoid(z));
  }
  return out;
}

mx::array rows_together(const std::vector<mx::array>& rows) {
  return mx::stack(rows, 1);
}

mx::array run(Group& group, const ShortConvolution& op) {
  const Convolution& conv = op.convolution;
  int64_t channels = conv.channels;
  if (op.form == ConvolutionForm::gated) {
    mx::array b = group.input(op.x, 0, channels);
    mx::array c = group.input(op.x, channels, channels);
    mx::array x = group.input(op.x, 2 * channels, channels);
    return mx::multiply(c, group.convolve(conv, mx::multiply(b, x)));
  }
  mx::array y = group.convolve(conv, group.input(op.x, op.first, channels));
  if (op.form == ConvolutionForm::silu) {
    return silu(y);
  }
  int64_t end = op.first + channels;
  return mx::concatenate(
      {group.input(op.x, 0, op.first),
       y,
       group.input(op.x, end, op.x->cols() - end)},
      2);
}

mx::array run(Group& group, const SelectiveScan& op) {
  int channels = int_of(op.channels), states = int_of(op.state_size);
  mx::array x = group.input(op.x, 0, channels);
  mx::array dt = softplus(group.input(op.dt, 0, channels));
  mx::array b = group.input(op.bc, 0, states);
  mx::array c = group.input(op.bc, states, states);
  if (op.b_norm != nullptr) {
    b = static_cast<const GraphNorm*>(op.b_norm)->apply(b);
    c = static_cast<const GraphNorm*>(op.c_norm)->apply(c);
  }
  mx::array a = mx::reshape(numbers(op.a), {states, channels});
  mx::array h = group.read(op.state, {states, channels});
  std::vector<mx::array> out;
  for (int t = 0; t < group.rows; ++t) {
    mx::array step = Group::at(dt, t);
    mx::array decay = mx::exp(mx::multiply(row(step), a));
    mx::array input = mx::multiply(step, Group::at(x, t));
    h = mx::add(
        mx::multiply(decay, h),
        mx::multiply(column(Group::at(b, t)), row(input)));
    out.push_back(product(Group::at(c, t), h));
  }
  group.write(op.state, h);
  mx::array y = mx::add(rows_together(out), mx::multiply(numbers(op.d), x));
  return mx::multiply(y, silu(group.input(op.z, op.z_first, channels)));
}

mx::array run(Group& group, const StateSpaceDual& op) {
  int64_t inner = op.heads * op.head_dim, channels = op.convolution.channels;
  int64_t shared = op.groups * op.state_size;
  const Tensor* in = op.projection;
  mx::array mixed =
      silu(group.convolve(op.convolution, group.input(in, inner, channels)));
  mx::array x = split_heads(part(mixed, 2, 0, inner), op.heads);
  auto by_head = [&](int64_t first) {
    return mx::repeat(
        split_heads(part(mixed, 2, first, shared), op.groups),
        op.heads / op.groups,
        2);
  };
  mx::array b = by_head(inner), c = by_head(inner + shared);
  mx::array dt = mx::multiply(
      group.input(in, inner + channels, op.heads), mx::array(op.dt_scale));
  dt = softplus(mx::add(dt, numbers(op.dt_bias)));
  dt = mx::clip(dt, mx::array(op.dt_min), mx::array(op.dt_max));
  mx::array decay = column(mx::exp(mx::multiply(dt, numbers(op.a))));
  mx::array v = mx::multiply(column(dt), x);
  mx::array h = group.read(op.state, {op.heads, op.state_size, op.head_dim});
  std::vector<mx::array> out;
  for (int t = 0; t < group.rows; ++t) {
    h = mx::add(
        mx::multiply(column(Group::at(decay, t)), h),
        mx::multiply(column(Group::at(b, t)), row(Group::at(v, t))));
    out.push_back(product(Group::at(c, t), h));
  }
  group.write(op.state, h);
  mx::array y =
      mx::add(rows_together(out), mx::multiply(column(numbers(op.d)), x));
  y = mx::reshape(y, {group.batch, group.rows, int_of(inner)});
  mx::array z = mx::multiply(group.input(in, 0, inner), mx::array(op.z_scale));
  return gate(y, z, op.norm);
}

mx::array run(Group& group, const GatedDelta& op) {
  int64_t members = op.value_heads / op.key_heads;
  int64_t keys = op.key_heads * op.key_dim;
  int64_t values = op.value_heads * op.value_dim;
  // The columns of all key heads side by side.
  auto gather = [&](const Tensor* in, const HeadColumns& at, int64_t width) {
    std::vector<mx::array> heads;
    for (int64_t head = 0; head < op.key_heads; ++head) {
      heads.push_back(group.input(in, at.first + head * at.stride, width));
    }
    return heads.size() == 1 ? heads[0] : mx::concatenate(heads, 2);
  };
  mx::array mixed = silu(group.convolve(
      op.convolution,
      mx::concatenate(
          {gather(op.projection, op.q, op.key_dim),
           gather(op.projection, op.k, op.key_dim),
           gather(op.projection, op.v, members * op.value_dim)},
          2)));
  auto unit = [&](int64_t first) {
    mx::array x = split_heads(part(mixed, 2, first, keys), op.key_heads);
    mx::array square = mx::sum(mx::square(x), -1, true);
    x = mx::multiply(x, mx::rsqrt(mx::add(square, mx::array(1e-6f))));
    return mx::repeat(x, int_of(members), 2);
  };
  mx::array q =
      mx::multiply(unit(0), mx::array(1 / std::sqrt(float(op.key_dim))));
  mx::array k = unit(keys);
  mx::array v = split_heads(part(mixed, 2, 2 * keys, values), op.value_heads);
  mx::array beta = column(mx::multiply(
      mx::sigmoid(gather(op.projection, op.beta_columns, members)),
      mx::array(op.beta_scale)));
  int64_t rates = op.decay_by_channel ? op.key_dim : 1;
  mx::array decay = mx::add(
      gather(op.decay, op.decay_columns, members * rates), numbers(op.dt_bias));
  decay = split_heads(
      mx::exp(mx::multiply(softplus(decay), numbers(op.a))), op.value_heads);
  mx::array s =
      group.read(op.state, {op.value_heads, op.key_dim, op.value_dim});
  std::vector<mx::array> out;
  for (int t = 0; t < group.rows; ++t) {
    s = mx::multiply(column(Group::at(decay, t)), s);
    mx::array key = Group::at(k, t);
    mx::array change = mx::multiply(
        Group::at(beta, t), mx::subtract(Group::at(v, t), product(key, s)));
    s = mx::add(s, mx::multiply(column(key), row(change)));
    out.push_back(product(Group::at(q, t), s));
  }
  group.write(op.state, s);
  mx::array y = mx::reshape(
      rows_together(out), {group.batch, group.rows, int_of(values)});
  return gate(
      y, gather(op.gate, op.gate_columns, members * op.value_dim), op.norm);
}

mx::array run(Group& group, const RealGatedRecurrence& op) {
  int width = int_of(op.width), block = width / op.blocks;
  const Tensor* in = op.projection;
  mx::array u = group.convolve(op.convolution, group.input(in, width, width));
  // By block: [batch, blocks, rows, block] x [blocks, block, block]
  mx::array blocks = mx::transpose(split_heads(u, op.blocks), {0, 2, 1, 3});
  auto gate_of = [&](const Constants* weight, const Constants* bias) {
    mx::array y = mx::matmul(
        blocks, mx::reshape(numbers(weight), {op.blocks, block, block}));
    y = mx::reshape(mx::transpose(y, {0, 2, 1, 3}), u.shape());
    return mx::sigmoid(mx::add(y, numbers(bias)));
  };
  mx::array log_a = mx::multiply(
      numbers(op.decay), gate_of(op.recurrent_weight, op.recurrent_bias));
  mx::array x = mx::multiply(u, gate_of(op.input_weight, op.input_bias));
  mx::array h = group.read(op.state, {width});
  std::vector<mx::array> out;
  for (int t = 0; t < group.rows; ++t) {
    mx::array one(1.0f);
    mx::array log_t = Group::at(log_a, t);
    mx::array root = mx::sqrt(
        mx::subtract(one, mx::exp(mx::multiply(log_t, mx::array(2.0f)))));
    mx::array a = mx::exp(log_t);
    if (t == 0) {
      // At position 0 the input counts in full.
      root =
          mx::where(mx::greater(group.continues, mx::array(0.0f)), root, one);
      a = mx::multiply(a, group.continues);
    }
    h = mx::add(mx::multiply(a, h), mx::multiply(root, Group::at(x, t)));
    out.push_back(h);
  }
  group.write(op.state, h);
  mx::array y = group.input(in, 0, width);
  mx::array inner = mx::multiply(
      mx::add(
          y,
          mx::multiply(mx::array(0.044715f), mx::multiply(y, mx::square(y)))),
      mx::array(0.79788456f));  // sqrt(2 / pi)
  mx::array gelu = mx::multiply(
      mx::multiply(y, mx::array(0.5f)),
      mx::add(mx::array(1.0f), mx::tanh(inner)));
  return mx::multiply(rows_together(out), gelu);
}

mx::array run(Group& group, const LightningAttention& op) {
  int64_t width = op.heads * op.head_dim, dim = op.head_dim;
  mx::array qkv =
      split_heads(silu(group.input(op.projection, 0, 3 * width)), op.heads);
  mx::array decay = mx::reshape(numbers(op.decay), {op.heads, 1, 1});
  mx::array s = group.read(op.state, {op.heads, dim, dim});
  std::vector<mx::array> out;
  for (int t = 0; t < group.rows; ++t) {
    mx::array token = Group::at(qkv, t);
    s = mx::add(
        mx::multiply(decay, s),
        mx::multiply(
            column(part(token, 2, dim, dim)),
            row(part(token, 2, 2 * dim, dim))));
    out.push_back(product(part(token, 2, 0, dim), s));
  }
  group.write(op.state, s);
  mx::array y =
      mx::reshape(rows_together(out), {group.batch, group.rows, int_of(width)});
  return gate(y, group.input(op.projection, 3 * width, width), op.norm);
}

mx::array run(Group& group, const LightningBlocks& op) {
  int64_t width = op.heads * op.head_dim, dim = op.head_dim;
  int heads = op.heads, size = int_of(op.size);
  // [batch, heads, rows, 3 * dim]
  mx::array qkv = mx::transpose(
      split_heads(silu(group.input(op.projection, 0, 3 * width)), heads),
      {0, 2, 1, 3});
  mx::array query_decay =
      mx::reshape(numbers(op.query_decay), {heads, size, 1});
  mx::array key_decay = mx::reshape(numbers(op.key_decay), {heads, size, 1});
  mx::array inside = mx::reshape(numbers(op.inside), {heads, size, size});
  mx::array decay = mx::reshape(numbers(op.block_decay), {heads, 1, 1});
  mx::array s =
      mx::zeros({group.batch, heads, int_of(dim), int_of(dim)}, mx::float32);
  std::vector<mx::array> out;
  for (int first = 0; first < group.rows; first += size) {
    int rows = std::min(size, group.rows - first);
    mx::array block = part(qkv, 2, first, rows);
    mx::array q = part(block, 3, 0, dim), k = part(block, 3, dim, dim);
    mx::array v = part(block, 3, 2 * dim, dim);
    mx::array weights = mx::multiply(
        mx::matmul(q, mx::swapaxes(k, 2, 3)),
        part(part(inside, 1, 0, rows), 2, 0, rows));
    out.push_back(mx::add(
        mx::matmul(weights, v),
        mx::matmul(mx::multiply(q, part(query_decay, 1, 0, rows)), s)));
    if (rows == size) {
      mx::array keys = mx::swapaxes(mx::multiply(k, key_decay), 2, 3);
      s = mx::add(mx::multiply(decay, s), mx::matmul(keys, v));
    }
  }
  mx::array y = mx::reshape(
      mx::transpose(mx::concatenate(out, 2), {0, 2, 1, 3}),
      {group.batch, group.rows, int_of(width)});
  return gate(y, group.input(op.projection, 3 * width, width), op.norm);
}

mx::array run(Group& group, const TokenShift& op) {
  int64_t cols = op.x->cols();
  mx::array x = group.input(op.x, 0, cols);
  mx::array all = mx::concatenate({group.read(op.state, {1, cols}), x}, 1);
  group.write(op.state, part(all, 1, group.rows, 1));
  return mx::subtract(part(all, 1, 0, group.rows), x);
}

mx::array run(Group& group, const Rwkv7& op) {
  int64_t dim = op.head_dim, width = op.heads * dim;
  auto in = [&](const Tensor* tensor) { return group.input(tensor, 0, width); };
  auto heads = [&](const mx::array& x) { return split_heads(x, op.heads); };
  mx::array one(1.0f);
  mx::array key = in(op.k), value_ = in(op.v), a = mx::sigmoid(in(op.a));
  if (op.v_mix != nullptr) {
    value_ = mx::add(
        value_,
        mx::multiply(
            mx::subtract(in(op.v_first), value_), mx::sigmoid(in(op.v_mix))));
  }
  mx::array w = heads(
      mx::exp(mx::multiply(mx::sigmoid(in(op.w)), mx::array(-0.606531f))));
  mx::array kk = heads(mx::multiply(key, numbers(op.k_k)));
  mx::array length = mx::sqrt(mx::sum(mx::square(kk), -1, true));
  kk = mx::divide(kk, mx::maximum(length, mx::array(1e-7f)));
  mx::array k = heads(mx::multiply(
      key, mx::add(one, mx::multiply(mx::subtract(a, one), numbers(op.k_a)))));
  mx::array v = heads(value_), r = heads(in(op.r));
  mx::array b = mx::multiply(kk, heads(a));
  mx::array s = group.read(op.state, {op.heads, dim, dim});
  std::vector<mx::array> out;
  for (int t = 0; t < group.rows; ++t) {
    mx::array held = product(Group::at(kk, t), s);
    s = mx::add(
        mx::subtract(
            mx::multiply(column(Group::at(w, t)), s),
            mx::multiply(column(Group::at(b, t)), row(held))),
        mx::multiply(column(Group::at(k, t)), row(Group::at(v, t))));
    out.push_back(product(Group::at(r, t), s));
  }
  group.write(op.state, s);
  mx::Shape shape{group.batch, group.rows, int_of(width)};
  mx::array y = mx::fast::layer_norm(
      rows_together(out), std::nullopt, std::nullopt, op.eps);
  y = mx::add(
      mx::multiply(mx::reshape(y, shape), numbers(op.norm_weight)),
      numbers(op.norm_bias));
  mx::array bonus = mx::sum(
      mx::multiply(
          mx::multiply(r, k),
          mx::reshape(numbers(op.r_k), {op.heads, int_of(dim)})),
      -1,
      true);
  y = mx::add(y, mx::reshape(mx::multiply(bonus, v), shape));
  return mx::multiply(y, in(op.g));
}

// No state: all rows at once.
mx::array interpolate(const ChannelBlend& op) {
  auto wide = [](const Tensor* x) {
    return mx::astype(value(*x), mx::float32);
  };
  return mx::add(wide(op.x), mx::multiply(numbers(op.mix), wide(op.delta)));
}

mx::array run(Group&, const ChannelBlend& op) {
  return interpolate(op);
}

}  // namespace

mx::array recurrence(
    Context& context,
    const Step& step,
    const Recurrence& op,
    GraphKvCache& cache,
    int layer) {
  if (const auto* mix = std::get_if<ChannelBlend>(&op)) {
    return context.to_compute(interpolate(*mix));
  }
  std::vector<mx::array> out;
  for (size_t first = 0; first < step.segments.size();) {
    size_t count = 1;
    while (first + count < step.segments.size() &&
           step.segments[first + count].num_rows ==
               step.segments[first].num_rows) {
      ++count;
    }
    Group group(step, first, count, &cache.states(layer));
    mx::array y =
        std::visit([&](const auto& which) { return run(group, which); }, op);
    cache.write_states(layer, group.slots, group.state);
    out.push_back(mx::reshape(y, {group.batch * group.rows, -1}));
    first += count;
  }
  return context.to_compute(out.size() == 1 ? out[0] : mx::concatenate(out, 0));
}

}  // namespace mlxcel::graph
