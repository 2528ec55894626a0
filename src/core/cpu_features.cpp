#include "core/cpu_features.h"

#include "core/error.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <utility>

namespace mlxcel {

namespace {

constexpr std::array<std::pair<Isa, std::string_view>, 4> kIsaNames = {{
    {Isa::portable, "portable"},
    {Isa::avx2, "avx2"},
    {Isa::avx512, "avx512"},
    {Isa::avx512_bf16, "avx512_bf16"},
}};

// The compiler's own test also asks the operating system whether it saves the
// wide registers.
bool machine_runs([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::portable:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case Isa::avx512:
      return machine_runs(Isa::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case Isa::avx512_bf16:
      return machine_runs(Isa::avx512) &&
             __builtin_cpu_supports("avx512bf16") &&
             __builtin_cpu_supports("avx512vnni");
  }
  return false;
#else
  return isa == Isa::portable;
#endif
}

std::string join_names(const std::vector<Isa>& isas) {
  std::string out;
  for (Isa isa : isas) {
    out += cat(out.empty() ? "" : ", ", name_of(isa));
  }
  return out;
}

}  // namespace

std::string_view name_of(Isa isa) {
  return kIsaNames.at(size_t(isa)).second;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (const auto& [isa, name] : kIsaNames) {
    if (machine_runs(isa)) {
      isas.push_back(isa);
    }
  }
  return isas;
}

Isa choose_isa() {
  std::vector<Isa> supported = supported_isas();
  const char* forced = std::getenv("MLXCEL_CPU_ISA");
  if (forced == nullptr || *forced == '\0') {
    return supported.back();
  }
  for (const auto& [isa, name] : kIsaNames) {
    if (name == forced) {
      if (std::find(supported.begin(), supported.end(), isa) ==
          supported.end()) {
        throw UsageError(
            cat("MLXCEL_CPU_ISA=", forced, " cannot run on this machine"),
            "its processor lacks instructions of that set",
            cat("set it to one of: ",
                join_names(supported),
                ", or leave it unset for the best"));
      }
      return isa;
    }
  }
  throw UsageError(
      cat("MLXCEL_CPU_ISA=", forced, " is not an instruction set"),
      "the kernels are chosen by that name",
      cat("set it to one of: ",
          join_names(supported),
          ", or leave it unset for the best"));
}

}  // namespace mlxcel
