#include "ops/cpu/read_ahead.h"

#include <algorithm>

namespace mlxcel::cpu {

namespace {

// More than any model has: whoever calls without steps fills no memory.
constexpr size_t kMostCalls = 4096;

}  // namespace

ReadAhead::ReadAhead(int threads) : lanes_(size_t(threads)) {}

void ReadAhead::begin_step() {
  ++step_;
  for (Lane& lane : lanes_) {
    lane.list.clear();
    lane.passed = 0;
  }
  lanes_[0].weights = 0;
}

const ReadAhead::Call* ReadAhead::begin_call(
    Calls& calls, int layer, const Window& window) {
  if (calls.step != step_ || calls.made == kMostCalls) {
    calls.all.resize(calls.made);
    calls.step = step_;
    calls.made = 0;
  }
  Call call{layer, window, lanes_[0].weights};
  if (calls.made == calls.all.size()) {
    calls.all.push_back(call);
  } else {
    calls.all[calls.made] = call;
  }
  ++calls.made;
  lanes_[0].weights = 0;
  return calls.made < calls.all.size() ? &calls.all[calls.made] : nullptr;
}

FetchList& ReadAhead::start(int thread, int64_t weights) {
  Lane& lane = lanes_[size_t(thread)];
  lane.list.clear();
  lane.expected = weights;
  return lane.list;
}

FetchList* ReadAhead::during(int thread, int64_t weights, int64_t outputs) {
  Lane& lane = lanes_[size_t(thread)];
  lane.weights += weights;
  int64_t left = std::max(lane.expected, weights);
  lane.expected -= weights;
  if (lane.list.lines() == 0 || outputs == 0) {
    return nullptr;
  }
  lane.list.spread(outputs, lane.list.lines() * weights / left);
  return &lane.list;
}

const FirstRows* ReadAhead::pass(int thread, const FirstRows& first) {
  Lane& lane = lanes_[size_t(thread)];
  size_t at = lane.passed;
  if (at == kMostCalls) {
    return nullptr;
  }
  ++lane.passed;
  if (at == lane.products.size()) {
    lane.products.push_back(first);
  } else {
    lane.products[at] = first;
  }
  return at + 1 < lane.products.size() ? &lane.products[at + 1] : nullptr;
}

}  // namespace mlxcel::cpu
