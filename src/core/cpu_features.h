// The instruction sets that kernels are written for, best last.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace mlxcel {

enum class Isa : uint8_t {
  portable,
  avx2,         // AVX2, FMA, F16C
  avx512,       // F, BW, DQ, VL
  avx512_bf16,  // and BF16, VNNI
};

std::string_view name_of(Isa isa);  // "portable", "avx2", ...
std::vector<Isa> supported_isas();  // what this machine can run, ascending

// The best supported set, or the one MLXCEL_CPU_ISA names. Throws UsageError
// when that is unknown or this machine cannot run it.
Isa choose_isa();

}  // namespace mlxcel
