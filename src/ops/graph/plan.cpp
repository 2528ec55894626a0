#include "ops/graph/plan.h"

#include "core/error.h"

#include <algorithm>

namespace mlxcel::graph {

namespace {

// Segments up to this many rows share a call; longer ones fill the device
// alone.
constexpr int kMaxSharedRows = 16;

mx::array int_array(const std::vector<int32_t>& values, mx::Shape shape) {
  return mx::array(values.data(), std::move(shape), mx::int32);
}

mx::array row_positions(const Step& step) {
  std::vector<int32_t> positions(size_t(step.num_rows()), 0);
  for (const Segment& segment : step.segments) {
    for (int i = 0; i < segment.num_rows; ++i) {
      positions[size_t(segment.first_row + i)] = int32_t(segment.position + i);
    }
  }
  return int_array(positions, {step.num_rows()});
}

}  // namespace

Plan::RowSegment::RowSegment(const Segment& segment)
    : first_row(segment.first_row),
      num_rows(segment.num_rows),
      position(segment.position),
      rope_length(segment.rope_length),
      blocks(segment.blocks.begin(), segment.blocks.end()),
      adapter_scales(
          segment.adapter_scales.begin(), segment.adapter_scales.end()) {}

int32_t Plan::RowSegment::slot(int64_t at) const {
  return blocks[size_t(at / kKvBlockSize)] * kKvBlockSize +
         int32_t(at % kKvBlockSize);
}

Plan::Plan(const Step& step)
    : segments(step.segments.begin(), step.segments.end()),
      positions(row_positions(step)),
      num_rows_(step.num_rows()) {}

bool Plan::describes(const Step& step) const {
  return step.num_rows() == num_rows_ &&
         std::equal(
             segments.begin(),
             segments.end(),
             step.segments.begin(),
             step.segments.end(),
             [](const RowSegment& a, const Segment& b) {
               return a.first_row == b.first_row && a.num_rows == b.num_rows &&
                      a.position == b.position &&
                      a.rope_length == b.rope_length &&
                      std::ranges::equal(a.blocks, b.blocks) &&
                      std::ranges::equal(a.adapter_scales, b.adapter_scales);
             });
}

const mx::array& Plan::slots(int num_blocks) {
  if (!slots_) {
    std::vector<int32_t> out(size_t(num_rows_), 0);
    for (const RowSegment& segment : segments) {
      if (int64_t(segment.blocks.size()) * kKvBlockSize < segment.end()) {
        throw ShapeError(
            "the KV blocks of a sequence do not cover its rows",
            cat(segment.blocks.size(),
                " blocks of ",
                kKvBlockSize,
                " positions, the last row is at position ",
                segment.end() - 1));
      }
      for (int32_t block : segment.blocks) {
        if (block < 0) {
          throw ShapeError(cat("KV block ", block, " does not exist"));
        }
        last_block_ = std::max(last_block_, block);
      }
      for (int i = 0; i < segment.num_rows; ++i) {
        out[size_t(segment.first_row + i)] = segment.slot(segment.position + i);
      }
    }
    slots_ = int_array(out, {num_rows_});
  }
  if (last_block_ >= num_blocks) {
    throw ShapeError(
        cat("KV block ", last_block_, " does not exist"),
        cat("the cache holds ", num_blocks, " blocks"));
  }
  return *slots_;
}

bool Plan::single_rows() const {
  for (size_t i = 0; i < segments.size(); ++i) {
    if (segments[i].num_rows != 1 || segments[i].first_row != int(i)) {
      return false;
    }
  }
  return int(segments.size()) == num_rows_;
}

const mx::array& Plan::table(int num_blocks) {
  slots(num_blocks);  // checks the blocks
  if (!table_) {
    size_t width = 0;
    for (const RowSegment& segment : segments) {
      width = std::max(width, size_t(segment.position / kKvBlockSize) + 1);
    }
    std::vector<int32_t> out{int32_t(width)};
    for (const RowSegment& segment : segments) {
      out.push_back(int32_t(segment.position));
      out.push_back(segment.slot(segment.position));
      size_t used = std::min(width, segment.blocks.size());
      out.insert(
          out.end(), segment.blocks.begin(), segment.blocks.begin() + used);
      out.resize(out.size() + width - used, 0);
    }
    table_ = int_array(out, {int(out.size())});
  }
  return *table_;
}

mx::array Plan::query_factors(const QueryScaling& scaling) const {
  std::vector<float> factors(size_t(num_rows_), 1.0f);
  for (const RowSegment& segment : segments) {
    for (int i = 0; i < segment.num_rows; ++i) {
      factors[size_t(segment.first_row + i)] = scaling.at(segment.position + i);
    }
  }
  return mx::array(factors.data(), {num_rows_, 1, 1});
}

namespace {

AttentionGroup make_group(
    const Plan::RowSegment* segments, int count, const Window& window) {
  AttentionGroup group;
  group.first_row = segments[0].first_row;
  group.batch = count;
  group.rows = segments[0].num_rows;
  bool equal_lengths = true, cut = false;
  for (int b = 0; b < count; ++b) {
    int64_t first = window.first(segments[b].position);
    int keys = int_of(segments[b].end() - first);
    equal_lengths &= b == 0 || keys == group.keys;
    group.keys = std::max(group.keys, keys);
    // Does the window hide from the last row what the first one sees?
    cut |= window.first(segments[b].end() - 1) > first;
  }

  std::vector<int32_t> slots;
  bool in_a_row = count == 1;
  for (int b = 0; b < count; ++b) {
    const Plan::RowSegment& segment = segments[b];
    int64_t first = window.first(segment.position);
    group.first_keys.push_back(int32_t(first));
    for (int t = 0; t < group.rows; ++t) {
      group.positions.push_back(int32_t(segment.position + t));
    }
    for (int j = 0; j < group.keys; ++j) {
      // Padding repeats the sequence's own first key, which is finite.
      int64_t at = first + j < segment.end() ? first + j : first;
      int32_t slot = segment.slot(at);
      in_a_row &= slots.empty() || slot == slots.back() + 1;
      slots.push_back(slot);
    }
  }
  group.first_slot = slots.front();
  if (!in_a_row) {
    group.slots = int_array(slots, {int(slots.size())});
  }

  if (group.rows == 1 && equal_lengths) {
    return group;
  }
  if (count == 1 && !cut) {
    group.causal = true;
    return group;
  }
  mx::array key = mx::add(
      mx::arange(group.keys, mx::int32),
      int_array(group.first_keys, {count, 1, 1, 1}));
  mx::array row = int_array(group.positions, {count, 1, group.rows, 1});
  mx::array mask = mx::less_equal(key, row);
  if (cut) {
    int32_t size = int32_t(window.size);
    mx::array before = window.chunked ? mx::remainder(row, mx::array(size))
                                      : mx::array(size - 1);
    mask = mx::logical_and(
        mask, mx::greater_equal(key, mx::subtract(row, before)));
  }
  group.mask = mask;
  return group;
}

}  // namespace

mx::array AttentionGroup::explicit_mask() const {
  if (mask) {
    return *mask;
  }
  if (!causal) {
    return mx::full({1, 1, 1, 1}, true);
  }
  mx::array key = mx::reshape(mx::arange(keys, mx::int32), {1, 1, 1, keys});
  mx::array row =
      mx::reshape(mx::arange(keys - rows, keys, mx::int32), {1, 1, rows, 1});
  return mx::less_equal(key, row);
}

mx::array AttentionGroup::distances() const {
  mx::array key = mx::add(
      mx::arange(keys, mx::int32), int_array(first_keys, {batch, 1, 1, 1}));
  mx::array row = int_array(positions, {batch, 1, rows, 1});
  return mx::astype(mx::subtract(key, row), mx::float32);
}

mx::array AttentionGroup::in_sight(
    const SparseBlocks& sparse, int heads) const {
  mx::array size(sparse.size);
  mx::array key = mx::floor_divide(
      mx::add(
          mx::arange(keys, mx::int32), int_array(first_keys, {batch, 1, 1, 1})),
      size);
  mx::array row =
      mx::floor_divide(int_array(positions, {batch, 1, rows, 1}), size);
  mx::array head =
      mx::reshape(mx::arange(1, heads + 1, mx::int32), {1, heads, 1, 1});
  mx::array strided = mx::equal(
      mx::remainder(mx::add(key, head), mx::array(sparse.stride)),
      mx::array(0));
  return mx::logical_or(
      mx::less(mx::subtract(row, key), mx::array(sparse.local)), strided);
}

const std::vector<AttentionGroup>& Plan::groups(const Window& window) {
  auto [entry, added] = groups_.try_emplace(window);
  if (!added) {
    return entry->second;
  }
  for (size_t i = 0; i < segments.size();) {
    size_t end = i;
    int64_t longest = 0, sum = 0;
    while (end < segments.size() &&
           segments[end].num_rows == segments[i].num_rows &&
           (end == i || segments[i].num_rows <= kMaxSharedRows)) {
      int64_t keys = segments[end].end() - window.first(segments[end].position);
      int64_t padded = std::max(longest, keys) * int64_t(end - i + 1);
      // Past this, padding costs more than a second call.
      if (end > i && padded > 2 * (sum + keys) + 4096) {
        break;
      }
      longest = std::max(longest, keys);
      sum += keys;
      ++end;
    }
    if (segments[i].num_rows > 0) {
      entry->second.push_back(make_group(&segments[i], int(end - i), window));
    }
    i = end;
  }
  return entry->second;
}

const Plan::RowScales* Plan::row_scales(const std::vector<int>& adapters) {
  auto [entry, added] = scales_.try_emplace(adapters);
  if (added) {
    size_t columns = adapters.size();
    std::vector<float> scales(size_t(num_rows_) * columns, 0.0f);
    std::vector<uint8_t> active(size_t(num_rows_), 0);
    for (const RowSegment& segment : segments) {
      for (size_t column = 0; column < columns; ++column) {
        size_t id = size_t(adapters[column]);
        float scale = id < segment.adapter_scales.size()
                          ? segment.adapter_scales[id]
                          : 0.0f;
        for (int i = 0; scale != 0 && i < segment.num_rows; ++i) {
          size_t row = size_t(segment.first_row + i);
          scales[row * columns + column] = scale;
          active[row] = 1;
        }
      }
    }
    auto count = std::count(active.begin(), active.end(), uint8_t(1));
    if (count > 0) {
      entry->second.emplace(RowScales{
          mx::array(scales.data(), {num_rows_, int(columns)}), std::nullopt});
      if (count < num_rows_) {
        entry->second->active =
            mx::array(active.data(), {num_rows_, 1}, mx::bool_);
      }
    }
  }
  return entry->second ? &*entry->second : nullptr;
}

}  // namespace mlxcel::graph
