// Rotary tables of a step, and the cache's bookkeeping.
#include "ops/cpu/rope.h"

#include "core/error.h"
#include "ops/cpu/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace mlxcel::cpu {
namespace {

RopeTable longrope_table() {
  RopeTable table;
  table.dims = 4;
  table.inv_freq = {1.0f, 0.5f};
  table.scale = 2;
  table.switch_length = 8;
  table.long_inv_freq = {0.25f, 0.125f};
  table.long_scale = 3;
  return table;
}

TEST(Rope, RowsHoldCosinesThenSines) {
  CpuRope rope(longrope_table());
  Step step;
  step.tokens = {0, 0, 0};
  step.segments.push_back({.num_rows = 2, .position = 7, .rope_length = 8});
  step.segments.push_back(
      {.first_row = 2,
       .num_rows = 1,
       .position = 8,
       .prompt = false,
       .rope_length = 9});
  const float* rows = rope.rows_of(step);
  auto expect_row = [&](int row, float angle0, float angle1, float scale) {
    const float* at = rows + row * 4;
    EXPECT_FLOAT_EQ(at[0], scale * std::cos(angle0));
    EXPECT_FLOAT_EQ(at[1], scale * std::cos(angle1));
    EXPECT_FLOAT_EQ(at[2], scale * std::sin(angle0));
    EXPECT_FLOAT_EQ(at[3], scale * std::sin(angle1));
  };
  expect_row(0, 7, 3.5f, 2);
  expect_row(1, 8, 4, 2);
  expect_row(2, 2, 1, 3);  // longer than switch_length: the long factors

  step.segments[0].rope_length = 100;
  rows = rope.rows_of(step);
  expect_row(0, 1.75f, 0.875f, 3);
}

TEST(Rope, RefusesFrequenciesOfAnotherSize) {
  RopeTable table = longrope_table();
  table.inv_freq.pop_back();
  EXPECT_THROW(CpuRope rope(table), ShapeError);
  table = longrope_table();
  table.long_inv_freq.clear();
  EXPECT_THROW(CpuRope rope(table), ShapeError);
}

TEST(KvCacheSpec, CountsAllLayers) {
  KvCacheSpec spec;
  spec.layers = {{3, 64, 64}, {1, 128, 96}};
  spec.dtype = DType::bf16;
  EXPECT_EQ(spec.bytes_per_block(), 64 * 2 * (3 * 128 + 224));
  spec.dtype = DType::f32;
  EXPECT_EQ(spec.bytes_per_block(), 64 * 4 * (3 * 128 + 224));
}

TEST(CpuKvCache, GrowsInPlaceAndCopies) {
  KvCacheSpec spec;
  spec.layers = {{2, 40, 72}, {1, 17, 17}};
  CpuKvCache cache(spec);
  EXPECT_EQ(cache.num_blocks(), 0);
  cache.reserve(3);
  ASSERT_GE(cache.num_blocks(), 3);
  std::byte* first = cache.block(0);
  size_t end = cache.layer(1).v_head(0) + cache.layer(1).v_head_bytes;
  std::memset(cache.block(1), 7, end);
  int before = cache.num_blocks();
  cache.reserve(before + 1);
  EXPECT_GT(cache.num_blocks(), before);
  EXPECT_EQ(cache.block(0), first);
  cache.copy_block(1, before);
  EXPECT_EQ(std::memcmp(cache.block(before), cache.block(1), end), 0);
  EXPECT_THROW(cache.copy_block(0, cache.num_blocks()), ShapeError);
  EXPECT_THROW(cache.copy_block(-1, 0), ShapeError);
}

TEST(CpuKvCache, RefusesOtherTypes) {
  KvCacheSpec spec;
  spec.layers = {{1, 16, 16}};
  spec.dtype = DType::i8;
  EXPECT_THROW(CpuKvCache cache(spec), ConfigError);
}

}  // namespace
}  // namespace mlxcel::cpu
