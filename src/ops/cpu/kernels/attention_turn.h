// Values from keys, for caches that keep one vector for both: included by each
// instruction set's attention kernels, which compile it with their own flags.
#pragma once

#include "ops/kv_cache.h"

#include <cstdint>
#include <cstring>

namespace mlxcel::cpu {
namespace {

// Squares of 4 by 4 are turned in registers; what is left at the edges goes one
// by one. Counts of positions may be rounded up to a square: a block has the
// keys of 64 positions and room for their values.
constexpr int kTurn = 4;

using FourFloats [[gnu::vector_size(16)]] = float;
using FourWords [[gnu::vector_size(32)]] = uint64_t;
using SixteenHalves [[gnu::vector_size(32)]] = uint16_t;

template <typename Vector>
inline void load(Vector& vector, const void* from) {
  std::memcpy(&vector, from, sizeof(vector));
}

// rows[i][j] becomes rows[j][i].
template <typename Vector>
inline void turn_square(Vector (&rows)[kTurn]) {
  Vector a = __builtin_shufflevector(rows[0], rows[1], 0, 4, 2, 6);
  Vector b = __builtin_shufflevector(rows[0], rows[1], 1, 5, 3, 7);
  Vector c = __builtin_shufflevector(rows[2], rows[3], 0, 4, 2, 6);
  Vector d = __builtin_shufflevector(rows[2], rows[3], 1, 5, 3, 7);
  rows[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  rows[1] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  rows[2] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  rows[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

void turn_f32(
    const float* keys, int features, int positions, float* values, int pitch) {
  int whole = features / kTurn * kTurn;
  for (int p = 0; p < positions; p += kTurn) {
    for (int f = 0; f < whole; f += kTurn) {
      FourFloats rows[kTurn];
      for (int i = 0; i < kTurn; ++i) {
        load(rows[i], keys + (f + i) * kKvBlockSize + p);
      }
      turn_square(rows);
      for (int i = 0; i < kTurn; ++i) {
        std::memcpy(values + (p + i) * pitch + f, &rows[i], sizeof(rows[i]));
      }
    }
    for (int f = whole; f < features; ++f) {
      for (int i = p; i < p + kTurn; ++i) {
        values[i * pitch + f] = keys[f * kKvBlockSize + i];
      }
    }
  }
}

// A word is four 16-bit values: features j and j + 1 of position i, then of
// i + 1. They become positions i and i + 1 of feature j, then of j + 1.
inline void turn_words(FourWords& words) {
  auto halves = (SixteenHalves)words;
  halves = __builtin_shufflevector(
      halves, halves, 0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  words = (FourWords)halves;
}

void turn_pairs(
    const uint32_t* keys,
    int features,
    int positions,
    uint32_t* values,
    int pitch) {
  constexpr int kWidth = 2 * kTurn;  // features and positions of a square
  int whole = features / kWidth * kWidth;
  for (int p = 0; p < positions; p += kWidth) {
    for (int f = 0; f < whole; f += kWidth) {
      FourWords rows[kTurn];
      for (int i = 0; i < kTurn; ++i) {
        load(rows[i], keys + (f / 2 + i) * kKvBlockSize + p);
        turn_words(rows[i]);
      }
      turn_square(rows);
      for (int i = 0; i < kTurn; ++i) {
        std::memcpy(
            values + (p / 2 + i) * pitch + f, &rows[i], sizeof(rows[i]));
      }
    }
    for (int f = whole; f < features; f += 2) {
      for (int i = p; i < p + kWidth; i += 2) {
        uint32_t first = keys[f / 2 * kKvBlockSize + i];
        uint32_t second = keys[f / 2 * kKvBlockSize + i + 1];
        uint32_t* to = values + i / 2 * pitch + f;
        to[0] = (first & 0xffffu) | second << 16;
        to[1] = first >> 16 | (second & 0xffff0000u);
      }
    }
  }
}

}  // namespace
}  // namespace mlxcel::cpu
