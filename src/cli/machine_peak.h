// What this machine can do at most, measured: the scale that bench's results
// are held against.
#pragma once

#include "core/thread_pool.h"

#include <string>

namespace mlxcel::cli {

struct MachinePeak {
  double read_bandwidth = 0;  // bytes a second, all threads
  double compute = 0;         // floating-point operations a second
  std::string compute_kind;   // "bf16 dot", "f32 FMA"
};

// Takes about half a second and 256 MB.
MachinePeak measure_machine(ThreadPool& pool);

// Floating-point operations of one call of the dot kernels, which keep their
// operands in registers.
struct PeakKernel {
  const char* kind;
  double operations;
  void (*run)(float* sink);  // 16 floats
};
PeakKernel peak_kernel_portable();
PeakKernel peak_kernel_avx2();
PeakKernel peak_kernel_avx512();
PeakKernel peak_kernel_avx512bf16();

}  // namespace mlxcel::cli
