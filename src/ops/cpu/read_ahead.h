// Keys and values that the next attention call will read, brought near by the
// products before it: with several generated rows these compute longer than
// they read, while attention waits for memory. And the first rows of the next
// product, which nothing else would ask for before it begins.
//
// Which layer that call reads, and which of its positions, is what the same
// call of the step before read: a model makes the same calls and products in
// each step. A wrong guess costs bandwidth, never a result.
#pragma once

#include "ops/backend.h"
#include "ops/cpu/kernels/matmul_kernels.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mlxcel::cpu {

class ReadAhead {
 public:
  explicit ReadAhead(int threads);

  // What an attention call reads, of each sequence of its step.
  struct Call {
    int layer = 0;  // of the cache
    Window window;
    int64_t weights = 0;  // of the products since the call before
  };
  // A model's calls in a step, in order. Kept with the cache that they read.
  struct Calls {
    int64_t step = 0;
    size_t made = 0;  // in this step
    std::vector<Call> all;
  };

  // Outside of jobs: a step begins.
  void begin_step();
  // Outside of jobs: an attention call begins. Returns what is to be expected
  // of the one after it, if anything is.
  const Call* begin_call(Calls& calls, int layer, const Window& window);

  // The rest is for one thread of a job. Starts a list of what it reads in the
  // call that comes after so many weights.
  FetchList& start(int thread, int64_t weights);
  // Passes the product of a linear with so many weights, of which the thread
  // computes `outputs`. Returns what to fetch meanwhile, or null.
  FetchList* during(int thread, int64_t weights, int64_t outputs);
  // A product begins, of which the thread reads `first` first. Returns the same
  // of the product after it, if anything is to be expected.
  const FirstRows* pass(int thread, const FirstRows& first);

 private:
  struct alignas(64) Lane {
    FetchList list;
    int64_t weights = 0;              // of the products since the last call
    int64_t expected = 0;             // and until the next one
    std::vector<FirstRows> products;  // of a step, in order
    size_t passed = 0;                // of them, in this step
  };

  int64_t step_ = 0;
  std::vector<Lane> lanes_;  // a thread
};

}  // namespace mlxcel::cpu
