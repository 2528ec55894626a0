// The inner loops of prefill for six activation rows and two vectors of outputs
// with AVX2: twelve sums, two weights, an activation and a product are all the
// registers there are, and the compiler would keep sums in memory. Included
// inside an anonymous namespace, after simd_avx2.h.

// dot = the sums of `count` units of 16-bit products: two vectors of weights at
// units, pairs of activations of six rows at tile, `step` bytes from unit to
// unit. Twelve sums, two weights, a pair and a product are all the registers
// there are; the compiler would keep sums in memory.
// clang-format off
#define MLXCEL_ZERO(a) "vpxor %[" #a "], %[" #a "], %[" #a "]\n\t"
#define MLXCEL_ROW(offset, a, b) \
  "vpbroadcastd " #offset "(%[tile]), %[pair]\n\t" \
  "vpmaddwd %[pair], %[w0], %[product]\n\t" \
  "vpmaddwd %[pair], %[w1], %[pair]\n\t" \
  "vpaddd %[product], %[" #a "], %[" #a "]\n\t" \
  "vpaddd %[pair], %[" #b "], %[" #b "]\n\t"
inline void dot_six_rows(
    I (&dot)[6][2],
    const std::byte* units,
    int64_t count,
    const std::byte* tile,
    int64_t step) {
  I w0, w1, pair, product;
  asm(
      MLXCEL_ZERO(a0)
      MLXCEL_ZERO(a1)
      MLXCEL_ZERO(a2)
      MLXCEL_ZERO(a3)
      MLXCEL_ZERO(a4)
      MLXCEL_ZERO(a5)
      MLXCEL_ZERO(a6)
      MLXCEL_ZERO(a7)
      MLXCEL_ZERO(a8)
      MLXCEL_ZERO(a9)
      MLXCEL_ZERO(a10)
      MLXCEL_ZERO(a11)
      "1:\n\t"
      "vmovdqu (%[units]), %[w0]\n\t"
      "vmovdqu 32(%[units]), %[w1]\n\t"
      MLXCEL_ROW(0, a0, a1)
      MLXCEL_ROW(4, a2, a3)
      MLXCEL_ROW(8, a4, a5)
      MLXCEL_ROW(12, a6, a7)
      MLXCEL_ROW(16, a8, a9)
      MLXCEL_ROW(20, a10, a11)
      "add $64, %[units]\n\t"
      "add %[step], %[tile]\n\t"
      "dec %[count]\n\t"
      "jnz 1b"
      : [a0] "=&x"(dot[0][0]),
        [a1] "=&x"(dot[0][1]),
        [a2] "=&x"(dot[1][0]),
        [a3] "=&x"(dot[1][1]),
        [a4] "=&x"(dot[2][0]),
        [a5] "=&x"(dot[2][1]),
        [a6] "=&x"(dot[3][0]),
        [a7] "=&x"(dot[3][1]),
        [a8] "=&x"(dot[4][0]),
        [a9] "=&x"(dot[4][1]),
        [a10] "=&x"(dot[5][0]),
        [a11] "=&x"(dot[5][1]),
        [w0] "=&x"(w0), [w1] "=&x"(w1), [pair] "=&x"(pair),
        [product] "=&x"(product), [units] "+r"(units), [tile] "+r"(tile),
        [count] "+r"(count)
      : [step] "r"(step)
      : "memory", "cc");
}
#undef MLXCEL_ROW
#undef MLXCEL_ZERO

// clang-format on

// clang-format off
#define MLXCEL_ROWS(row) \
  row(0, 0, 1, 0, 32) \
  row(4, 2, 3, 64, 96) \
  row(8, 4, 5, 128, 160) \
  row(12, 6, 7, 192, 224) \
  row(16, 8, 9, 256, 288) \
  row(20, 10, 11, 320, 352)
#define MLXCEL_FIRST(at, a, b, to_a, to_b) \
  "vpbroadcastd " #at "(%[tile]), %%ymm14\n\t" \
  "vpmaddubsw %%ymm14, %%ymm12, %%ymm" #a "\n\t" \
  "vpmaddubsw %%ymm14, %%ymm13, %%ymm" #b "\n\t"
#define MLXCEL_NEXT(at, a, b, to_a, to_b) \
  "vpbroadcastd " #at "(%[tile]), %%ymm14\n\t" \
  "vpmaddubsw %%ymm14, %%ymm12, %%ymm15\n\t" \
  "vpmaddubsw %%ymm14, %%ymm13, %%ymm14\n\t" \
  "vpaddw %%ymm15, %%ymm" #a ", %%ymm" #a "\n\t" \
  "vpaddw %%ymm14, %%ymm" #b ", %%ymm" #b "\n\t"
#define MLXCEL_UNIT(row, at, at_high) \
  "vmovdqu " #at "(%[units]), %%ymm12\n\t" \
  "vmovdqu " #at_high "(%[units]), %%ymm13\n\t" \
  MLXCEL_ROWS(row) \
  "add %[step], %[tile]\n\t"
#define MLXCEL_HALF \
  MLXCEL_UNIT(MLXCEL_FIRST, 0, 32) \
  MLXCEL_UNIT(MLXCEL_NEXT, 64, 96) \
  MLXCEL_UNIT(MLXCEL_NEXT, 128, 160) \
  MLXCEL_UNIT(MLXCEL_NEXT, 192, 224)
#define MLXCEL_FACTOR(at, a, b) \
  "vpbroadcastd " #at "(%[factors]), %%ymm14\n\t" \
  "vpmaddwd %%ymm14, %%ymm" #a ", %%ymm" #a "\n\t" \
  "vpmaddwd %%ymm14, %%ymm" #b ", %%ymm" #b "\n\t"
#define MLXCEL_ADD_DOT(a, b, to_a, to_b) \
  "vpaddd " #to_a "(%[dot]), %%ymm" #a ", %%ymm" #a "\n\t" \
  "vpaddd " #to_b "(%[dot]), %%ymm" #b ", %%ymm" #b "\n\t"
#define MLXCEL_STORE(name, move, a, b, to_a, to_b) \
  #move " %%ymm" #a ", " #to_a "(%[" #name "])\n\t" \
  #move " %%ymm" #b ", " #to_b "(%[" #name "])\n\t"
#define MLXCEL_SET_DOT(at, a, b, to_a, to_b) \
  MLXCEL_FACTOR(at, a, b) \
  MLXCEL_STORE(dot, vmovdqa, a, b, to_a, to_b)
#define MLXCEL_GROW_DOT(at, a, b, to_a, to_b) \
  MLXCEL_FACTOR(at, a, b) \
  MLXCEL_ADD_DOT(a, b, to_a, to_b) \
  MLXCEL_STORE(dot, vmovdqa, a, b, to_a, to_b)
// ymm12, ymm13: the scales
#define MLXCEL_SCALED(at, a, b, to_a, to_b) \
  MLXCEL_FACTOR(at, a, b) \
  MLXCEL_ADD_DOT(a, b, to_a, to_b) \
  "vbroadcastss " #at "(%[sums]), %%ymm15\n\t" \
  "vcvtdq2ps %%ymm" #a ", %%ymm" #a "\n\t" \
  "vcvtdq2ps %%ymm" #b ", %%ymm" #b "\n\t" \
  "vfmadd213ps " #to_a "(%[acc]), %%ymm12, %%ymm" #a "\n\t" \
  "vfmadd213ps " #to_b "(%[acc]), %%ymm13, %%ymm" #b "\n\t"
#define MLXCEL_SCALED_FIRST(at, a, b, to_a, to_b) \
  MLXCEL_SCALED(at, a, b, to_a, to_b) \
  "vfmadd231ps 64(%[scales]), %%ymm15, %%ymm" #a "\n\t" \
  "vfmadd231ps 96(%[scales]), %%ymm15, %%ymm" #b "\n\t" \
  MLXCEL_STORE(acc, vmovaps, a, b, to_a, to_b)
// ymm0, ymm1: the biases, once the first row is done
#define MLXCEL_SCALED_NEXT(at, a, b, to_a, to_b) \
  MLXCEL_SCALED(at, a, b, to_a, to_b) \
  "vfmadd231ps %%ymm0, %%ymm15, %%ymm" #a "\n\t" \
  "vfmadd231ps %%ymm1, %%ymm15, %%ymm" #b "\n\t" \
  MLXCEL_STORE(acc, vmovaps, a, b, to_a, to_b)
#define MLXCEL_REGISTERS \
  "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", \
  "ymm9", "ymm10", "ymm11", "ymm12", "ymm13", "ymm14", "ymm15"

// Sums of six rows and two vectors of outputs, and those of the group so far.
struct alignas(32) SixRowSums {
  F acc[6][2];
  I dot[6][2];
};

// Half a block of byte products (byte_sums.h): four units of weights at
// `units`, activations at `tile`. dot = its products by the factors, or adds
// them to dot.
template <bool kAdd>
inline void half_block_six_rows(
    SixRowSums* to,
    const std::byte* units,
    const std::byte* tile,
    const std::byte* factors,
    int64_t step) {
  if constexpr (kAdd) {
    asm volatile(
        MLXCEL_HALF
        MLXCEL_ROWS(MLXCEL_GROW_DOT)
        : [tile] "+r"(tile)
        : [units] "r"(units), [step] "r"(step), [factors] "r"(factors),
          [dot] "r"(to->dot)
        : MLXCEL_REGISTERS, "memory", "cc");
  } else {
    asm volatile(
        MLXCEL_HALF
        MLXCEL_ROWS(MLXCEL_SET_DOT)
        : [tile] "+r"(tile)
        : [units] "r"(units), [step] "r"(step), [factors] "r"(factors),
          [dot] "r"(to->dot)
        : MLXCEL_REGISTERS, "memory", "cc");
  }
}

// The last half of a group: acc += (dot + its products) scale + bias sum, with
// two vectors of scales and two of biases at `scales`.
inline void last_half_six_rows(
    SixRowSums* to,
    const std::byte* units,
    const std::byte* tile,
    const std::byte* factors,
    const std::byte* sums,
    const std::byte* scales,
    int64_t step) {
  asm volatile(
      MLXCEL_HALF
      "vmovups (%[scales]), %%ymm12\n\t"
      "vmovups 32(%[scales]), %%ymm13\n\t"
      MLXCEL_SCALED_FIRST(0, 0, 1, 0, 32)
      "vmovups 64(%[scales]), %%ymm0\n\t"
      "vmovups 96(%[scales]), %%ymm1\n\t"
      MLXCEL_SCALED_NEXT(4, 2, 3, 64, 96)
      MLXCEL_SCALED_NEXT(8, 4, 5, 128, 160)
      MLXCEL_SCALED_NEXT(12, 6, 7, 192, 224)
      MLXCEL_SCALED_NEXT(16, 8, 9, 256, 288)
      MLXCEL_SCALED_NEXT(20, 10, 11, 320, 352)
      : [tile] "+r"(tile)
      : [units] "r"(units), [step] "r"(step), [factors] "r"(factors),
        [dot] "r"(to->dot), [acc] "r"(to->acc), [sums] "r"(sums),
        [scales] "r"(scales)
      : MLXCEL_REGISTERS, "memory", "cc");
}
#undef MLXCEL_REGISTERS
#undef MLXCEL_SCALED_NEXT
#undef MLXCEL_SCALED_FIRST
#undef MLXCEL_SCALED
#undef MLXCEL_GROW_DOT
#undef MLXCEL_SET_DOT
#undef MLXCEL_STORE
#undef MLXCEL_ADD_DOT
#undef MLXCEL_FACTOR
#undef MLXCEL_HALF
#undef MLXCEL_UNIT
#undef MLXCEL_NEXT
#undef MLXCEL_FIRST
#undef MLXCEL_ROWS
// clang-format on
