// What this machine can do at most, measured: the scale that bench's results
// are held against.
#pragma once

#include "core/thread_pool.h"

#include <cstddef>
#include <cstdint>
#include <string>

namespace mlxcel::cli {

// Reads memory with all threads of a pool, again and again: what a machine
// gives changes with what else it does.
class BandwidthProbe {
 public:
  // Takes 256 MB, in huge pages where the system has them.
  explicit BandwidthProbe(ThreadPool& pool);
  ~BandwidthProbe();
  BandwidthProbe(const BandwidthProbe&) = delete;
  BandwidthProbe& operator=(const BandwidthProbe&) = delete;

  // Bytes a second, the best of some passes; about 50 ms.
  double measure();

 private:
  ThreadPool& pool_;
  std::byte* data_;
};

struct ComputePeak {
  double rate = 0;   // floating-point operations a second, all threads
  std::string kind;  // "bf16 dot", "f32 FMA"
};
ComputePeak measure_compute(ThreadPool& pool);

// The fastest loops of an instruction set.
struct PeakKernel {
  const char* kind;
  double operations;         // of one call of `run`, with operands in registers
  void (*run)(float* sink);  // 16 floats
  // Loads `bytes` bytes, a multiple of 4096; the result depends on all.
  uint64_t (*read)(const std::byte* data, size_t bytes);
};
PeakKernel peak_kernel_portable();
PeakKernel peak_kernel_avx2();
PeakKernel peak_kernel_avx512();
PeakKernel peak_kernel_avx512bf16();

}  // namespace mlxcel::cli
