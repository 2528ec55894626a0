// One linear inside a fork-join: packing activations, decode ranges and
// prefill panels.
#include "ops/cpu/cpu_linear.h"
#include "ops/cpu/prefetch.h"
#include "ops/cpu/read_ahead.h"

#include <algorithm>
#include <cstring>

namespace mlxcel::cpu {

namespace {

// Up to this many decode rows every thread packs its own copy: cheaper than a
// barrier.
constexpr int kRowsPackedByEachThread = 4;

constexpr size_t round_up(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

}  // namespace

Scratch::Scratch(Context& context, size_t bytes)
    : pool_(context.buffers),
      data_(pool_->take(std::max<size_t>(bytes, 64), &capacity_)) {}

Scratch::~Scratch() {
  pool_->give_back(data_, capacity_);
}

Product::Product(
    Context& context,
    const CpuLinear& linear,
    RowPlan plan,
    std::vector<ActiveTerm> terms)
    : context_(context),
      linear_(linear),
      plan_(plan),
      terms_(std::move(terms)) {
  const Kernels& kernels = linear.kernels();
  int tile_rows = kernels.tile_rows;
  tiles_ = (plan.prompt_rows + tile_rows - 1) / tile_rows;
  shared_ = plan.prompt_rows > 0 || plan.decode_rows > kRowsPackedByEachThread;

  size_t size_t_threads = size_t(context.pool.size());
  if (plan.decode_rows > 0) {
    for (const Matrix& format : linear.decode_formats()) {
      decode_offset_.push_back(decode_bytes_);
      decode_bytes_ += round_up(
          kernels.decode_row_bytes(format) * size_t(plan.decode_rows), 64);
    }
  }
  size_t bytes = decode_bytes_ * (shared_ ? 1 : size_t_threads);
  if (tiles_ > 0) {
    for (const Matrix& format : linear.prefill_formats()) {
      tile_offset_.push_back(bytes);
      tile_stride_.push_back(
          round_up(kernels.tile_bytes(format, tile_rows), 64));
      bytes += tile_stride_.back() * size_t(tiles_);
    }
  }
  packed_ = std::make_unique<Scratch>(context, bytes);

  size_t row_floats = round_up(size_t(linear.in()), 16);
  size_t normed_rows = size_t_threads * size_t(tile_rows);
  if (!terms_.empty()) {
    normed_rows = shared_ ? size_t(plan.rows())
                          : size_t_threads * size_t(plan.decode_rows);
    place_terms();
  }
  normed_bytes_ = normed_rows * row_floats * sizeof(float);
}

void Product::set_input(
    const float* x,
    int64_t ldx,
    const CpuNorm* norm,
    std::span<const int32_t> row_index) {
  x_ = x;
  ldx_ = ldx;
  norm_ = norm;
  row_index_ = row_index;
  // Rows that are read where they lie need no copy.
  if (norm != nullptr || (tiles_ > 0 && !row_index.empty())) {
    normed_ = std::make_unique<Scratch>(context_, normed_bytes_);
  }
}

float* Product::normed_memory() const {
  return normed_ ? reinterpret_cast<float*>(normed_->data()) : nullptr;
}

const float* Product::input_row(int row) const {
  return x_ + (row_index_.empty() ? row : row_index_[size_t(row)]) * ldx_;
}

const float* Product::term_input(int thread, int row) const {
  if (norm_ == nullptr) {
    return input_row(row);
  }
  int64_t slot =
      shared_ ? row
              : int64_t(thread) * plan_.decode_rows + row - plan_.prompt_rows;
  return reinterpret_cast<const float*>(normed_->data()) +
         slot * int64_t(round_up(size_t(linear_.in()), 16));
}

// All tiles are full but the last one, or the last two where it would have few
// rows.
std::pair<int, int> Product::tile(int index) const {
  int most = linear_.kernels().tile_rows;
  int last = plan_.prompt_rows - (tiles_ - 1) * most;
  int first_cut = tiles_ > 1 && last < most / 2 ? tiles_ - 2 : tiles_ - 1;
  int begin = index * most;
  if (index < first_cut) {
    return {begin, most};
  }
  begin = first_cut * most;
  int left = plan_.prompt_rows - begin;
  int rows = (left + tiles_ - first_cut - 1) / (tiles_ - first_cut);
  return index == first_cut ? std::pair(begin, rows)
                            : std::pair(begin + rows, left - rows);
}

void Product::pack_decode_rows(int thread, int begin, int end) {
  const Kernels& kernels = linear_.kernels();
  std::byte* packed =
      packed_->data() + (shared_ ? 0 : size_t(thread) * decode_bytes_);
  int64_t row_floats = int64_t(round_up(size_t(linear_.in()), 16));
  float* normed = normed_memory();
  for (int r = begin; r < end; ++r) {
    int row = plan_.prompt_rows + r;
    const float* x = input_row(row);
    if (norm_ != nullptr) {
      int64_t slot = int64_t(thread) * kernels.tile_rows;
      if (!terms_.empty()) {
        slot = shared_ ? row : int64_t(thread) * plan_.decode_rows + r;
      }
      norm_->apply(x, normed + slot * row_floats);
      x = normed + slot * row_floats;
    }
    for (size_t f = 0; f < decode_offset_.size(); ++f) {
      kernels.decode_pack(
          linear_.decode_formats()[f],
          x,
          r,
          plan_.decode_rows,
          packed + decode_offset_[f]);
    }
  }
}

void Product::pack(int thread) {
  const Kernels& kernels = linear_.kernels();
  int threads = context_.pool.size();
  int64_t row_floats = int64_t(round_up(size_t(linear_.in()), 16));
  float* normed = normed_memory();

  if (shared_) {
    auto [begin, end] = split_range(plan_.decode_rows, thread, threads);
    pack_decode_rows(thread, int(begin), int(end));
  } else {
    pack_decode_rows(thread, 0, plan_.decode_rows);
  }

  auto [tile_begin, tile_end] = split_range(tiles_, thread, threads);
  for (int t = int(tile_begin); t < int(tile_end); ++t) {
    auto [row, rows] = tile(t);
    const float* x = input_row(row);
    int64_t ldx = ldx_;
    if (norm_ != nullptr || !row_index_.empty()) {
      float* out =
          normed +
          (terms_.empty() ? int64_t(thread) * kernels.tile_rows : row) *
              row_floats;
      for (int i = 0; i < rows; ++i) {
        const float* from = input_row(row + i);
        if (norm_ != nullptr) {
          norm_->apply(from, out + i * row_floats);
        } else {
          std::memcpy(
              out + i * row_floats, from, size_t(linear_.in()) * sizeof(float));
        }
      }
      x = out;
      ldx = row_floats;
    }
    for (size_t f = 0; f < tile_offset_.size(); ++f) {
      kernels.tile_pack(
          linear_.prefill_formats()[f],
          x,
          ldx,
          rows,
          packed_->data() + tile_offset_[f] + size_t(t) * tile_stride_[f]);
    }
  }
  if (shared_) {
    context_.pool.barrier();
  }
  if (!terms_.empty() && !terms_in_decode_) {
    terms_of_all_rows(thread);
  }
}

void Product::add_bias(
    int rows, int64_t begin, int64_t end, float* y, int64_t ldy) const {
  for (const CpuLinear::Part& part : linear_.parts()) {
    int64_t b = std::max(begin, part.first);
    int64_t e = std::min(end, part.first + part.matrix.out);
    if (part.bias.empty() || b >= e) {
      continue;
    }
    for (int i = 0; i < rows; ++i) {
      float* out = y + i * ldy + (b - begin);
      const float* bias = part.bias.data() + (b - part.first);
      for (int64_t o = 0; o < e - b; ++o) {
        out[o] += bias[o];
      }
    }
  }
}

FirstRows Product::rows_from(int64_t output) const {
  for (const CpuLinear::Part& part : linear_.parts()) {
    if (output < part.first + part.matrix.out) {
      return cpu::rows_from(part.matrix, output - part.first);
    }
  }
  return {};
}

void Product::multiply(
    int thread,
    const DecodeRange& range,
    FetchList* fetch,
    const FirstRows* after) const {
  const std::byte* packed =
      packed_->data() + (shared_ ? 0 : size_t(thread) * decode_bytes_);
  for (const CpuLinear::Part& part : linear_.parts()) {
    int64_t b = std::max(range.begin, part.first);
    int64_t e = std::min(range.end, part.first + part.matrix.out);
    if (b >= e) {
      continue;
    }
    Matrix matrix = part.matrix;
    matrix.fetch = fetch;
    FirstRows next;
    if (e < range.end) {
      next = rows_from(e);
      matrix.after = &next;
    } else {
      matrix.after = after;
    }
    linear_.kernels().decode(
        matrix,
        b - part.first,
        e - part.first,
        packed + decode_offset_[size_t(part.decode_format)],
        plan_.decode_rows,
        range.y + (b - range.begin),
        range.ldy);
  }
  add_bias(plan_.decode_rows, range.begin, range.end, range.y, range.ldy);
}

void Product::decode(int thread, std::span<const DecodeRange> ranges) const {
  if (plan_.decode_rows == 0) {
    return;
  }
  if (terms_in_decode_) {
    decode_with_terms(thread, ranges);
    return;
  }
  int64_t outputs = 0;
  for (const DecodeRange& range : ranges) {
    outputs += range.end - range.begin;
  }
  FetchList* fetch =
      context_.ahead->during(thread, linear_.in() * linear_.out(), outputs);
  const FirstRows* following = nullptr;
  FirstRows known;
  if (outputs > 0) {
    int64_t first =
        ranges[0].begin < ranges[0].end ? ranges[0].begin : ranges.back().begin;
    following = context_.ahead->pass(thread, rows_from(first));
    if (next_ != nullptr) {
      known = next_->rows_from(first);
      following = &known;
    }
  }
  // Blocks whose outputs stay in the first cache until they are finished.
  constexpr int64_t kBlock = 512;
  float scratch[kBlock];
  for (const DecodeRange& range : ranges) {
    FirstRows next;
    const FirstRows* after = following;
    if (&range != &ranges.back()) {
      next = rows_from((&range + 1)->begin);
      after = &next;
    }
    for (int64_t o = range.begin; o < range.end; o += kBlock) {
      DecodeRange block = range;
      block.begin = o;
      block.end = std::min(o + kBlock, range.end);
      block.y += o - range.begin;
      multiply(thread, block, fetch, block.end == range.end ? after : nullptr);
      if (!terms_.empty()) {
        add_terms(
            values(0),
            plan_.prompt_rows,
            plan_.decode_rows,
            block.begin,
            block.end,
            block.y,
            block.ldy,
            scratch);
      }
    }
  }
}

int64_t Product::panel_columns(const Panel& panel) const {
  return linear_.kernels().panel_columns(
      linear_.parts()[size_t(panel.part)].matrix);
}

size_t Product::panel_bytes() const {
  size_t bytes = 0;
  for (const CpuLinear::Part& part : linear_.parts()) {
    bytes = std::max(bytes, linear_.kernels().panel_bytes(part.matrix));
  }
  return round_up(bytes, 64);
}

void Product::panel_pack(
    const Panel& panel, int64_t k0, int64_t k1, std::byte* out) const {
  const CpuLinear::Part& part = linear_.parts()[size_t(panel.part)];
  linear_.kernels().panel_pack(
      part.matrix,
      panel.begin - part.first,
      panel.end - part.first,
      k0,
      k1,
      out);
}

void Product::panel_fetch(const Panel& panel, int part, int parts) const {
  const CpuLinear::Part& p = linear_.parts()[size_t(panel.part)];
  const Matrix& m = p.matrix;
  auto fetch = [&](const std::byte* data, size_t stride) {
    auto lines = int64_t(size_t(panel.end - panel.begin) * stride / 64);
    const std::byte* from = data + size_t(panel.begin - p.first) * stride;
    int64_t begin = lines * part / parts;
    int64_t end = lines * (part + 1) / parts;
    prefetch<Cache::second>(from + begin * 64, size_t(end - begin) * 64);
  };
  fetch(m.weight, m.weight_stride);
  if (m.quant.packed()) {
    fetch(m.scales, m.scale_stride);
    fetch(m.biases, m.scale_stride);
  }
}

void Product::panel_multiply(
    const Panel& panel,
    const std::byte* data,
    int64_t k0,
    int64_t k1,
    int tile_index,
    float* y,
    int64_t ldy,
    float* scratch) const {
  const CpuLinear::Part& part = linear_.parts()[size_t(panel.part)];
  size_t format = size_t(part.prefill_format);
  auto [row, rows] = tile(tile_index);
  linear_.kernels().panel_multiply(
      part.matrix,
      data,
      int(panel.end - panel.begin),
      k0,
      k1,
      packed_->data() + tile_offset_[format] +
          size_t(tile_index) * tile_stride_[format],
      rows,
      y,
      ldy);
  if (k1 == linear_.in()) {
    add_bias(rows, panel.begin, panel.end, y, ldy);
    if (!terms_.empty()) {
      add_terms(values(0), row, rows, panel.begin, panel.end, y, ldy, scratch);
    }
  }
}

}  // namespace mlxcel::cpu
