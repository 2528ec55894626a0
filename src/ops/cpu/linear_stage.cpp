#include "ops/cpu/linear_stage.h"

#include "ops/cpu/kernels/norm_kernels.h"
#include "ops/cpu/prefetch.h"

#include <algorithm>

namespace mlxcel::cpu {

namespace {

constexpr size_t round_up(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

// Into how many groups of tiles to cut the rows, so that the threads end
// together although there are few panels. Each group converts its panels again,
// hence groups of many rows only.
int tile_group_count(int panels, int tiles, int tile_rows, int threads) {
  constexpr int kTasksPerThread = 8;
  constexpr int kLeastRows = 96;
  int wanted = (threads * kTasksPerThread + panels - 1) / std::max(panels, 1);
  int possible = std::max(1, tiles * tile_rows / kLeastRows);
  return threads == 1 ? 1 : std::clamp(wanted, 1, possible);
}

// Brings the lines of a block of rows in while the products before their use
// are computed: 64 columns of each of many rows are no pattern that hardware
// foresees.
void fetch_rows(
    const float* block, int64_t stride, int rows, int64_t columns, bool write) {
  size_t bytes = size_t(columns) * sizeof(float);
  for (int i = 0; i < rows; ++i) {
    const float* row = block + i * stride;
    write ? prefetch<Cache::first, true>(row, bytes)
          : prefetch<Cache::first>(row, bytes);
  }
}

// Output ranges within one part each, at most panel_rows long. Borders also lie
// at `also` when it is inside a part.
void cut_panels(
    const CpuLinear& linear,
    int64_t also,
    std::vector<Product::Panel>* panels) {
  int64_t step = linear.kernels().panel_rows;
  for (size_t p = 0; p < linear.parts().size(); ++p) {
    const CpuLinear::Part& part = linear.parts()[p];
    int64_t end = part.first + part.matrix.out;
    for (int64_t o = part.first; o < end;) {
      int64_t stop = std::min(o + step, end);
      if (o < also && also < stop) {
        stop = also;
      }
      panels->push_back({int(p), o, stop});
      o = stop;
    }
  }
}

}  // namespace

LinearStage::LinearStage(
    Context& context,
    const Product& product,
    float* y,
    const float* residual,
    const LinearOptions& options,
    int64_t pitch)
    : context_(context),
      product_(product),
      y_(y),
      pitch_(pitch == 0 ? product.linear().out() : pitch),
      residual_(residual),
      options_(options) {
  if (product.plan().prompt_rows == 0) {
    return;
  }
  const Kernels& kernels = product.linear().kernels();
  int threads = context.pool.size();
  cut_panels(product.linear(), 0, &panels_);
  tile_groups_ = tile_group_count(
      int(panels_.size()), product.tile_count(), kernels.tile_rows, threads);
  thread_bytes_ = product.panel_bytes() +
                  round_up(size_t(kernels.panel_rows) * sizeof(float), 64);
  scratch_ =
      std::make_unique<Scratch>(context, thread_bytes_ * size_t(threads));
}

void LinearStage::finish(int row, int rows, int64_t begin, int64_t end) const {
  if (options_.output_norm != nullptr ||
      (residual_ == nullptr && options_.output_scale == 1)) {
    return;
  }
  int64_t out = product_.linear().out();
  float scale = options_.output_scale;
  const NormKernels& kernels = norm_kernels(context_.isa);
  for (int i = row; i < row + rows; ++i) {
    float* y = y_ + i * pitch_;
    if (residual_ == nullptr) {
      for (int64_t o = begin; o < end; ++o) {
        y[o] *= scale;
      }
      continue;
    }
    const float* residual = residual_ + i * out;
    kernels.add(residual + begin, y + begin, scale, y + begin, end - begin);
  }
}

void LinearStage::norm_rows(int thread) const {
  const auto* norm = static_cast<const CpuNorm*>(options_.output_norm);
  int64_t out = product_.linear().out();
  auto [begin, end] =
      split_range(product_.plan().rows(), thread, context_.pool.size());
  for (int64_t row = begin; row < end; ++row) {
    float* y = y_ + row * pitch_;
    norm->apply(y, y);
    float scale = options_.output_scale;
    if (residual_ != nullptr) {
      norm_kernels(context_.isa).add(residual_ + row * out, y, scale, y, out);
      continue;
    }
    for (int64_t o = 0; o < out; ++o) {
      y[o] *= scale;
    }
  }
}

void LinearStage::run_prefill(int thread) {
  std::byte* panel = scratch_->data() + size_t(thread) * thread_bytes_;
  auto* spare = reinterpret_cast<float*>(panel + product_.panel_bytes());
  int64_t in = product_.linear().in(), out = product_.linear().out();
  int tasks = int(panels_.size()) * tile_groups_;
  for (int task; (task = next_task_.fetch_add(1)) < tasks;) {
    const Product::Panel& p = panels_[size_t(task / tile_groups_)];
    // Most likely this thread's next one.
    size_t next = size_t((task + context_.pool.size()) / tile_groups_);
    auto [tile_begin, tile_end] =
        split_range(product_.tile_count(), task % tile_groups_, tile_groups_);
    int64_t columns = product_.panel_columns(p);
    for (int64_t k0 = 0; k0 < in; k0 += columns) {
      int64_t k1 = std::min(k0 + columns, in);
      product_.panel_pack(p, k0, k1, panel);
      for (int t = int(tile_begin); t < int(tile_end); ++t) {
        auto [row, rows] = product_.tile(t);
        float* y = y_ + row * pitch_ + p.begin;
        fetch_rows(y, pitch_, rows, p.end - p.begin, true);
        if (residual_ != nullptr && k1 == in) {
          fetch_rows(
              residual_ + row * out + p.begin,
              out,
              rows,
              p.end - p.begin,
              false);
        }
        if (next < panels_.size() && k0 == 0) {
          product_.panel_fetch(
              panels_[next], t - int(tile_begin), int(tile_end - tile_begin));
        }
        product_.panel_multiply(p, panel, k0, k1, t, y, pitch_, spare);
        if (k1 == in) {
          finish(row, rows, p.begin, p.end);
        }
      }
    }
  }
}

void LinearStage::run(int thread) {
  const CpuLinear& linear = product_.linear();
  int threads = context_.pool.size();
  const RowPlan& plan = product_.plan();
  if (plan.decode_rows > 0) {
    int64_t begin = linear.split_by_bytes(thread, threads);
    int64_t end = linear.split_by_bytes(thread + 1, threads);
    DecodeRange range{
        begin, end, y_ + plan.prompt_rows * pitch_ + begin, pitch_};
    product_.decode(thread, {&range, 1});
    finish(plan.prompt_rows, plan.decode_rows, begin, end);
  }
  if (plan.prompt_rows > 0) {
    run_prefill(thread);
  }
  if (options_.output_norm != nullptr) {
    context_.pool.barrier();
    norm_rows(thread);
  }
}

GateUpStage::GateUpStage(
    Context& context,
    const Product& product,
    float* h,
    int64_t inner,
    const MlpForm& form)
    : context_(context), product_(product), h_(h), inner_(inner), form_(form) {
  const RowPlan& plan = product.plan();
  const Kernels& kernels = product.linear().kernels();
  int threads = context.pool.size();
  size_t floats = 0;
  if (plan.decode_rows > 0) {
    int64_t longest = 0;
    for (int t = 0; t < threads; ++t) {
      auto [begin, end] = split_range(inner, t, threads, 16);
      longest = std::max(longest, end - begin);
    }
    // One more row for those that lie in turn.
    floats = (size_t(plan.decode_rows) + 1) * 2 * size_t(longest);
  }
  thread_bytes_ = floats * sizeof(float);
  if (plan.prompt_rows > 0) {
    std::vector<Product::Panel> panels;
    // Pairs in turn stay together: panels have an even number of rows.
    cut_panels(product.linear(), form_.in_turn ? 0 : inner, &panels);
    if (!form_.gated || form_.in_turn) {
      for (const Product::Panel& panel : panels) {
        pairs_.push_back({panel, panel});
      }
    } else {
      // Walk both halves, cutting where either ends.
      auto up = std::find_if(panels.begin(), panels.end(), [&](const auto& p) {
        return p.begin >= inner;
      });
      for (auto gate = panels.begin();
           up != panels.end() && gate->begin < inner;) {
        int64_t length = std::min(gate->end - gate->begin, up->end - up->begin);
        Pair pair{*gate, *up};
        pair.gate.end = pair.gate.begin + length;
        pair.up.end = pair.up.begin + length;
        pairs_.push_back(pair);
        gate->begin += length;
        up->begin += length;
        gate += gate->begin == gate->end ? 1 : 0;
        up += up->begin == up->end ? 1 : 0;
      }
    }
    tile_groups_ = tile_group_count(
        int(pairs_.size()), product.tile_count(), kernels.tile_rows, threads);
    // Two panels, a row for the terms, and the products of both panels for all
    // rows where the input is longer than a panel.
    size_t rows = size_t(plan.prompt_rows);
    thread_bytes_ = std::max(
        thread_bytes_,
        2 * product.panel_bytes() +
            round_up(
                size_t(kernels.panel_rows) * (2 * rows + 1) * sizeof(float),
                64));
  }
  thread_bytes_ = round_up(thread_bytes_, 64);
  scratch_ =
      std::make_unique<Scratch>(context, thread_bytes_ * size_t(threads));
}

void GateUpStage::activate(
    float* gate, float* up, float* h, int64_t count) const {
  for (int64_t i = 0; form_.gate_scale != 1 && i < count; ++i) {
    gate[i] *= form_.gate_scale;
  }
  if (form_.activation == Activation::xielu) {
    norm_kernels(context_.isa).xielu(gate, form_.xielu, h, count);
    return;
  }
  if (form_.gated && form_.clamp.limit > 0) {
    // g sigmoid(a g) (u + 1) = silu(a g) (u + 1) / a
    float limit = form_.clamp.limit, alpha = form_.clamp.alpha;
    for (int64_t i = 0; i < count; ++i) {
      gate[i] = alpha * std::min(gate[i], limit);
      up[i] = (std::clamp(up[i], -limit, limit) + 1) / alpha;
    }
  }
  product_.linear().kernels().activate(
      form_.activation, gate, form_.gated ? up : nullptr, h, count);
}

void GateUpStage::finish(
    float* gate, float* up, float* h, int64_t first, int64_t count) const {
  if (!form_.in_turn) {
    activate(gate, up, h + first, count);
    return;
  }
  int64_t half = count / 2;
  for (int64_t i = 0; i < half; ++i) {
    up[i] = gate[2 * i];
    up[half + i] = gate[2 * i + 1];
  }
  activate(up, up + half, h + first / 2, half);
}

void GateUpStage::run_decode(int thread) {
  const RowPlan& plan = product_.plan();
  auto [begin, end] = split_range(inner_, thread, context_.pool.size(), 16);
  int64_t count = end - begin;
  auto* gate = reinterpret_cast<float*>(
      scratch_->data() + size_t(thread) * thread_bytes_);
  int64_t first = form_.in_turn ? 2 * begin : begin;
  int64_t columns = form_.in_turn ? 2 * count : count;
  float* up = gate + int64_t(plan.decode_rows) * columns;
  DecodeRange ranges[2] = {
      {first, first + columns, gate, columns},
      {inner_ + begin, inner_ + end, up, count}};
  product_.decode(thread, {ranges, two_products() ? 2u : 1u});
  if (count <= 0) {
    return;
  }
  for (int r = 0; r < plan.decode_rows; ++r) {
    finish(
        gate + r * columns,
        form_.in_turn ? up : up + r * count,
        h_ + (plan.prompt_rows + r) * inner_,
        first,
        columns);
  }
}

void GateUpStage::run_prefill(int thread) {
  const Kernels& kernels = product_.linear().kernels();
  std::byte* gate_panel = scratch_->data() + size_t(thread) * thread_bytes_;
  std::byte* up_panel = gate_panel + product_.panel_bytes();
  int64_t width = kernels.panel_rows;
  auto* spare = reinterpret_cast<float*>(up_panel + product_.panel_bytes());
  float* products = spare + width;
  int64_t in = product_.linear().in();
  int per_column = form_.in_turn ? 2 : 1;  // products of a column of h
  int tasks = int(pairs_.size()) * tile_groups_;
  for (int task; (task = next_task_.fetch_add(1)) < tasks;) {
    const Pair& pair = pairs_[size_t(task / tile_groups_)];
    size_t next = size_t((task + context_.pool.size()) / tile_groups_);
    auto [tile_begin, tile_end] =
        split_range(product_.tile_count(), task % tile_groups_, tile_groups_);
    int64_t count = pair.gate.end - pair.gate.begin;
    int64_t columns = std::min(
        product_.panel_columns(pair.gate), product_.panel_columns(pair.up));
    for (int64_t k0 = 0; k0 < in; k0 += columns) {
      int64_t k1 = std::min(k0 + columns, in);
      product_.panel_pack(pair.gate, k0, k1, gate_panel);
      if (two_products()) {
        product_.panel_pack(pair.up, k0, k1, up_panel);
      }
      for (int t = int(tile_begin); t < int(tile_end); ++t) {
        auto [row, rows] = product_.tile(t);
        if (k1 == in) {
          fetch_rows(
              h_ + row * inner_ + pair.gate.begin / per_column,
              inner_,
              rows,
              count / per_column,
              true);
        }
        if (next < pairs_.size() && k0 == 0) {
          int part = t - int(tile_begin), parts = int(tile_end - tile_begin);
          product_.panel_fetch(pairs_[next].gate, part, parts);
          if (two_products()) {
            product_.panel_fetch(pairs_[next].up, part, parts);
          }
        }
        // Sums that go on with the next panel need a place for each row.
        float* gate = products + (columns < in ? row * 2 * width : 0);
        float* up = gate + width;
        product_.panel_multiply(
            pair.gate, gate_panel, k0, k1, t, gate, 2 * width, spare);
        if (two_products()) {
          product_.panel_multiply(
              pair.up, up_panel, k0, k1, t, up, 2 * width, spare);
        }
        if (k1 < in) {
          continue;
        }
        for (int i = 0; i < rows; ++i) {
          finish(
              gate + i * 2 * width,
              up + i * 2 * width,
              h_ + (row + i) * inner_,
              pair.gate.begin,
              count);
        }
      }
    }
  }
}

void GateUpStage::run(int thread) {
  if (product_.plan().decode_rows > 0) {
    run_decode(thread);
  }
  if (product_.plan().prompt_rows > 0) {
    run_prefill(thread);
  }
}

}  // namespace mlxcel::cpu
