#include "support/models/reference_recurrence.h"

#include <algorithm>
#include <cmath>

namespace mlxcel::testing::reference {

namespace {

const Row& numbers(const Constants* constants) {
  return static_cast<const ReferenceConstants*>(constants)->values;
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

double silu(double x) {
  return x * sigmoid(x);
}

double softplus(double x) {
  return std::log1p(std::exp(x));
}

// One token of one sequence: the row's inputs and the sequence's state.
struct Token {
  size_t row;
  int64_t position;
  Row& state;

  const double* input(const Tensor* tensor, int64_t first = 0) const {
    return rows_of(*tensor)[row].data() + first;
  }
  double* at(int64_t first) const {
    return state.data() + first;
  }

  // Pushes x [channels] and returns the convolution's result.
  Row convolve(const Convolution& op, const Row& x) const {
    size_t channels = size_t(op.channels), taps = size_t(op.taps);
    Row y(channels);
    double* past = at(op.state);
    for (size_t c = 0; c < channels; ++c) {
      y[c] = op.bias != nullptr ? numbers(op.bias)[c] : 0;
      for (size_t j = 0; j < taps; ++j) {
        double value = j + 1 < taps ? past[j * channels + c] : x[c];
        y[c] += numbers(op.weight)[j * channels + c] * value;
      }
    }
    for (size_t j = 0; j + 1 < taps; ++j) {
      for (size_t c = 0; c < channels; ++c) {
        past[j * channels + c] =
            j + 2 < taps ? past[(j + 1) * channels + c] : x[c];
      }
    }
    return y;
  }
};

void apply(Row& y, const Row& z, const GatedNorm& op) {
  if (op.gate == GateForm::silu || op.gate == GateForm::norm_of_gated) {
    for (size_t i = 0; i < y.size(); ++i) {
      y[i] *= silu(z[i]);
    }
  }
  if (op.gate == GateForm::silu) {
    return;
  }
  const Row& weight = numbers(op.weight);
  size_t group = size_t(op.group);
  for (size_t first = 0; first < y.size(); first += group) {
    double square = 0;
    for (size_t i = 0; i < group; ++i) {
      square += y[first + i] * y[first + i] / double(group);
    }
    for (size_t i = 0; i < group; ++i) {
      size_t at = first + i;
      y[at] *= weight[at % weight.size()] / std::sqrt(square + double(op.eps));
      if (op.gate == GateForm::silu_of_norm) {
        y[at] *= silu(z[at]);
      } else if (op.gate == GateForm::sigmoid_of_norm) {
        y[at] *= sigmoid(z[at]);
      }
    }
  }
}

Row slice(const double* from, int64_t count) {
  return Row(from, from + count);
}

Row run(const Token& token, const ShortConvolution& op) {
  int64_t channels = op.convolution.channels;
  Row all = rows_of(*op.x)[token.row];
  if (op.form == ConvolutionForm::gated) {
    Row product;
    for (int64_t c = 0; c < channels; ++c) {
      product.push_back(all[size_t(c)] * all[size_t(2 * channels + c)]);
    }
    Row y = token.convolve(op.convolution, product);
    for (int64_t c = 0; c < channels; ++c) {
      y[size_t(c)] *= all[size_t(channels + c)];
    }
    return y;
  }
  Row y = token.convolve(
      op.convolution, slice(token.input(op.x, op.first), channels));
  if (op.form == ConvolutionForm::silu) {
    std::transform(y.begin(), y.end(), y.begin(), silu);
    return y;
  }
  std::copy(y.begin(), y.end(), all.begin() + op.first);
  return all;
}

Row run(const Token& token, const SelectiveScan& op) {
  Row bc = slice(token.input(op.bc), 2 * op.state_size);
  if (op.b_norm != nullptr) {
    size_t half = size_t(op.state_size);
    static_cast<const ReferenceNorm*>(op.b_norm)->apply(bc, 0, half);
    static_cast<const ReferenceNorm*>(op.c_norm)->apply(bc, half, 2 * half);
  }
  Row y;
  for (int64_t c = 0; c < op.channels; ++c) {
    double dt = softplus(token.input(op.dt)[c]), x = token.input(op.x)[c];
    double sum = numbers(op.d)[size_t(c)] * x;
    for (int64_t n = 0; n < op.state_size; ++n) {
      double& h = *token.at(op.state + n * op.channels + c);
      h = std::exp(dt * numbers(op.a)[size_t(n * op.channels + c)]) * h +
          dt * bc[size_t(n)] * x;
      sum += bc[size_t(op.state_size + n)] * h;
    }
    y.push_back(sum * silu(token.input(op.z, op.z_first)[c]));
  }
  return y;
}

Row run(const Token& token, const StateSpaceDual& op) {
  int64_t inner = op.heads * op.head_dim, channels = op.convolution.channels;
  Row mixed = token.convolve(
      op.convolution, slice(token.input(op.projection, inner), channels));
  std::transform(mixed.begin(), mixed.end(), mixed.begin(), silu);
  Row y(size_t(inner), 0);
  for (int64_t head = 0; head < op.heads; ++head) {
    double dt = softplus(
        double(op.dt_scale) *
            token.input(op.projection, inner + channels)[head] +
        numbers(op.dt_bias)[size_t(head)]);
    dt = std::clamp(dt, double(op.dt_min), double(op.dt_max));
    double decay = std::exp(dt * numbers(op.a)[size_t(head)]);
    int64_t group = head / (op.heads / op.groups);
    const double* b = mixed.data() + inner + group * op.state_size;
    const double* c = b + op.groups * op.state_size;
    for (int64_t p = 0; p < op.head_dim; ++p) {
      int64_t at = head * op.head_dim + p;
      double x = mixed[size_t(at)];
      y[size_t(at)] = numbers(op.d)[size_t(head)] * x;
      for (int64_t n = 0; n < op.state_size; ++n) {
        double& h =
            *token.at(op.state + (head * op.state_size + n) * op.head_dim + p);
        h = decay * h + dt * b[n] * x;
        y[size_t(at)] += c[n] * h;
      }
    }
  }
  Row z = slice(token.input(op.projection), inner);
  for (double& value : z) {
    value *= double(op.z_scale);
  }
  apply(y, z, op.norm);
  return y;
}

Row unit(Row x) {
  double square = 0;
  for (double value : x) {
    square += value * value;
  }
  for (double& value : x) {
    value /= std::sqrt(square + 1e-6);
  }
  return x;
}

Row run(const Token& token, const GatedDelta& op) {
  int64_t group = op.value_heads / op.key_heads;
  int64_t dk = op.key_dim, dv = op.value_dim;
  Row mixed;
  auto take = [&](const HeadColumns& columns, int64_t width) {
    for (int64_t head = 0; head < op.key_heads; ++head) {
      const double* from =
          token.input(op.projection, columns.first + head * columns.stride);
      mixed.insert(mixed.end(), from, from + width);
    }
  };
  take(op.q, dk);
  take(op.k, dk);
  take(op.v, group * dv);
  mixed = token.convolve(op.convolution, mixed);
  std::transform(mixed.begin(), mixed.end(), mixed.begin(), silu);
  Row y, z;
  for (int64_t head = 0; head < op.value_heads; ++head) {
    int64_t key = head / group, member = head % group;
    Row q = unit(slice(mixed.data() + key * dk, dk));
    Row k = unit(slice(mixed.data() + (op.key_heads + key) * dk, dk));
    const double* v = mixed.data() + 2 * op.key_heads * dk + head * dv;
    double beta =
        double(op.beta_scale) *
        sigmoid(token.input(
            op.projection,
            op.beta_columns.first + key * op.beta_columns.stride)[member]);
    const double* decay = token.input(
        op.decay, op.decay_columns.first + key * op.decay_columns.stride);
    double* s = token.at(op.state + head * dk * dv);
    for (int64_t i = 0; i < dk; ++i) {
      int64_t rate = op.decay_by_channel ? member * dk + i : member;
      size_t index = size_t(op.decay_by_channel ? head * dk + i : head);
      double factor = std::exp(
          numbers(op.a)[index] *
          softplus(decay[rate] + numbers(op.dt_bias)[index]));
      for (int64_t j = 0; j < dv; ++j) {
        s[i * dv + j] *= factor;
      }
    }
    for (int64_t j = 0; j < dv; ++j) {
      double held = 0, sum = 0;
      for (int64_t i = 0; i < dk; ++i) {
        held += s[i * dv + j] * k[size_t(i)];
      }
      for (int64_t i = 0; i < dk; ++i) {
        s[i * dv + j] += k[size_t(i)] * beta * (v[j] - held);
        sum += s[i * dv + j] * q[size_t(i)] / std::sqrt(double(dk));
      }
      y.push_back(sum);
    }
    const double* gate = token.input(
        op.gate,
        op.gate_columns.first + key * op.gate_columns.stride + member * dv);
    z.insert(z.end(), gate, gate + dv);
  }
  apply(y, z, op.norm);
  return y;
}

Row run(const Token& token, const RealGatedRecurrence& op) {
  Row u = token.convolve(
      op.convolution, slice(token.input(op.projection, op.width), op.width));
  size_t block = size_t(op.width / op.blocks);
  Row out;
  for (size_t c = 0; c < u.size(); ++c) {
    size_t base = c / block * block;
    double input = numbers(op.input_bias)[c];
    double recurrent = numbers(op.recurrent_bias)[c];
    for (size_t k = 0; k < block; ++k) {
      size_t at = (base + k) * block + c % block;
      input += u[base + k] * numbers(op.input_weight)[at];
      recurrent += u[base + k] * numbers(op.recurrent_weight)[at];
    }
    double log_a = numbers(op.decay)[c] * sigmoid(recurrent);
    double x = u[c] * sigmoid(input);
    double& h = *token.at(op.state + int64_t(c));
    h = token.position == 0
            ? x
            : std::exp(log_a) * h + std::sqrt(1 - std::exp(2 * log_a)) * x;
    double y = token.input(op.projection)[c];
    double inner = std::sqrt(2 / std::acos(-1.0)) * (y + 0.044715 * y * y * y);
    out.push_back(h * 0.5 * y * (1 + std::tanh(inner)));
  }
  return out;
}

Row run(const Token& token, const LightningAttention& op) {
  int64_t dim = op.head_dim, width = op.heads * dim;
  Row y;
  for (int64_t head = 0; head < op.heads; ++head) {
    Row qkv = slice(token.input(op.projection, head * 3 * dim), 3 * dim);
    std::transform(qkv.begin(), qkv.end(), qkv.begin(), silu);
    double* s = token.at(op.state + head * dim * dim);
    for (int64_t j = 0; j < dim; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < dim; ++i) {
        double& cell = s[i * dim + j];
        cell = numbers(op.decay)[size_t(head)] * cell +
               qkv[size_t(dim + i)] * qkv[size_t(2 * dim + j)];
        sum += qkv[size_t(i)] * cell;
      }
      y.push_back(sum);
    }
  }
  apply(y, slice(token.input(op.projection, 3 * width), width), op.norm);
  return y;
}

// All rows of a sequence at once, after the formulas: a state for each row from
// the whole blocks before its own.
Rows run_blocks(const Segment& segment, const LightningBlocks& op) {
  int64_t dim = op.head_dim, width = op.heads * dim, size = op.size;
  Rows out(size_t(segment.num_rows));
  for (int64_t row = 0; row < segment.num_rows; ++row) {
    auto input = [&](int64_t at, int64_t first) {
      return rows_of(*op.projection)[size_t(segment.first_row + at)].data() +
             first;
    };
    Row& y = out[size_t(row)];
    for (int64_t head = 0; head < op.heads; ++head) {
      auto part = [&](int64_t at, int64_t index) {
        Row x = slice(input(at, (3 * head + index) * dim), dim);
        std::transform(x.begin(), x.end(), x.begin(), silu);
        return x;
      };
      Row q = part(row, 0), sum(size_t(dim), 0);
      int64_t block = row / size, i = row % size;
      for (int64_t at = 0;
           at < std::min<int64_t>((block + 1) * size, segment.num_rows);
           ++at) {
        Row k = part(at, 1), v = part(at, 2);
        int64_t j = at % size;
        double factor = 0;
        for (int64_t d = 0; d < dim; ++d) {
          factor += q[size_t(d)] * k[size_t(d)];
        }
        if (at / size == block) {
          factor *= numbers(op.inside)[size_t((head * size + i) * size + j)];
        } else {
          factor *= numbers(op.query_decay)[size_t(head * size + i)] *
                    numbers(op.key_decay)[size_t(head * size + j)] *
                    std::pow(
                        numbers(op.block_decay)[size_t(head)],
                        double(block - 1 - at / size));
        }
        for (int64_t d = 0; d < dim; ++d) {
          sum[size_t(d)] += factor * v[size_t(d)];
        }
      }
      y.insert(y.end(), sum.begin(), sum.end());
    }
    apply(y, slice(input(row, 3 * width), width), op.norm);
  }
  return out;
}

Row run(const Token&, const LightningBlocks&) {
  return {};  // see run_blocks()
}

Row run(const Token& token, const TokenShift& op) {
  Row out;
  for (int64_t c = 0; c < op.x->cols(); ++c) {
    double x = token.input(op.x)[c];
    out.push_back(*token.at(op.state + c) - x);
    *token.at(op.state + c) = x;
  }
  return out;
}

Row run(const Token& token, const ChannelBlend& op) {
  Row out;
  for (int64_t c = 0; c < op.x->cols(); ++c) {
    out.push_back(
        token.input(op.x)[c] +
        numbers(op.mix)[size_t(c)] * token.input(op.delta)[c]);
  }
  return out;
}

Row run(const Token& token, const Rwkv7& op) {
  int64_t dim = op.head_dim;
  Row out;
  for (int64_t head = 0; head < op.heads; ++head) {
    int64_t first = head * dim;
    Row kk, w, k, v, a;
    double square = 0, bonus = 0;
    for (int64_t c = first; c < first + dim; ++c) {
      size_t at = size_t(c);
      double key = token.input(op.k)[c];
      kk.push_back(key * numbers(op.k_k)[at]);
      square += kk.back() * kk.back();
      w.push_back(std::exp(-0.606531 * sigmoid(token.input(op.w)[c])));
      a.push_back(sigmoid(token.input(op.a)[c]));
      k.push_back(key * (1 + (a.back() - 1) * numbers(op.k_a)[at]));
      v.push_back(token.input(op.v)[c]);
      if (op.v_mix != nullptr) {
        v.back() += (token.input(op.v_first)[c] - v.back()) *
                    sigmoid(token.input(op.v_mix)[c]);
      }
      bonus += token.input(op.r)[c] * k.back() * numbers(op.r_k)[at];
    }
    double* s = token.at(op.state + head * dim * dim);
    Row y;
    for (int64_t j = 0; j < dim; ++j) {
      double held = 0, sum = 0;
      for (int64_t i = 0; i < dim; ++i) {
        held -= s[i * dim + j] * kk[size_t(i)] / std::sqrt(square);
      }
      for (int64_t i = 0; i < dim; ++i) {
        size_t key = size_t(i);
        double& cell = s[i * dim + j];
        cell = cell * w[key] + held * kk[key] / std::sqrt(square) * a[key] +
               k[key] * v[size_t(j)];
        sum += cell * token.input(op.r)[first + i];
      }
      y.push_back(sum);
    }
    double mean = 0, variance = 0;
    for (double value : y) {
      mean += value / double(dim);
    }
    for (double value : y) {
      variance += (value - mean) * (value - mean) / double(dim);
    }
    for (int64_t j = 0; j < dim; ++j) {
      size_t at = size_t(first + j);
      double normed = (y[size_t(j)] - mean) /
                          std::sqrt(variance + double(op.eps)) *
                          numbers(op.norm_weight)[at] +
                      numbers(op.norm_bias)[at];
      out.push_back(
          (normed + bonus * v[size_t(j)]) * token.input(op.g)[first + j]);
    }
  }
  return out;
}

}  // namespace

Tensor recurrence(const Step& step, const Recurrence& op, Rows& states) {
  Rows out;
  Row none;
  for (const Segment& segment : step.segments) {
    if (const auto* blocks = std::get_if<LightningBlocks>(&op)) {
      Rows rows = run_blocks(segment, *blocks);
      out.insert(out.end(), rows.begin(), rows.end());
      continue;
    }
    for (int i = 0; i < segment.num_rows; ++i) {
      Token token{
          size_t(segment.first_row + i),
          segment.position + i,
          segment.state < 0 ? none : states[size_t(segment.state)]};
      out.push_back(
          std::visit([&](const auto& which) { return run(token, which); }, op));
    }
  }
  return wrap(std::move(out), output_columns(op));
}

}  // namespace mlxcel::testing::reference
