// Figures for Prometheus. Updating one takes an atomic operation, never a
// lock; finding it by its labels takes one, so keep the reference.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mlxcel::http {

class Counter {
 public:
  void add(double amount = 1) {
    value_.fetch_add(amount, std::memory_order_relaxed);
  }
  double value() const {
    return value_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<double> value_{0};
};

class Gauge {
 public:
  void set(double value) {
    value_.store(value, std::memory_order_relaxed);
  }
  void add(double amount) {
    value_.fetch_add(amount, std::memory_order_relaxed);
  }
  double value() const {
    return value_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<double> value_{0};
};

class Histogram {
 public:
  // Upper bounds, ascending; +Inf is added.
  explicit Histogram(std::span<const double> bounds);
  void observe(double value);
  uint64_t count() const;
  double sum() const {
    return sum_.load(std::memory_order_relaxed);
  }

 private:
  friend class Registry;
  std::vector<double> bounds_;
  std::vector<std::atomic<uint64_t>> buckets_;  // one more than bounds_
  std::atomic<double> sum_{0};
};

// 1 ms to 60 s, about three a decade.
std::span<const double> latency_bounds();

using Labels = std::vector<std::pair<std::string, std::string>>;

class Registry {
 public:
  // Names end in _total for counters, and in their unit otherwise (Prometheus's
  // advice). The same name and labels give the same figure; another kind under
  // a taken name throws std::logic_error. References stay valid.
  Counter& counter(
      const std::string& name, const std::string& help, Labels labels = {});
  Gauge& gauge(
      const std::string& name, const std::string& help, Labels labels = {});
  Histogram& histogram(
      const std::string& name,
      const std::string& help,
      std::span<const double> bounds = latency_bounds(),
      Labels labels = {});

  // A gauge or counter whose value is asked for when the text is made.
  enum class Kind { counter, gauge, histogram };
  void callback(
      Kind kind,
      const std::string& name,
      const std::string& help,
      std::function<double()> value,
      Labels labels = {});

  // Prometheus text format 0.0.4, families in order of their names.
  std::string text() const;

  static constexpr std::string_view kContentType =
      "text/plain; version=0.0.4; charset=utf-8";

 private:
  struct Family;
  Family& family(const std::string& name, const std::string& help, Kind kind);

  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Family>> families_;
};

// Memory, descriptors, processor time and start of this process, under the
// names that Prometheus's client libraries use (process_*).
void add_process_metrics(Registry& registry);

}  // namespace mlxcel::http
