#include "http/metrics.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace mlxcel::http {

namespace {

std::string number(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "+Inf" : "-Inf";
  }
  return fmt::format("{}", value);  // the shortest that reads back the same
}

void escape(std::string& out, std::string_view text, bool quotes) {
  for (char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes) {
      out += "\\\"";
    } else {
      out.push_back(c);
    }
  }
}

// {a="1",le="0.5"}, or nothing without labels.
std::string label_text(const Labels& labels, std::string_view bound = {}) {
  if (labels.empty() && bound.empty()) {
    return {};
  }
  std::string out = "{";
  for (const auto& [name, value] : labels) {
    out += out.size() > 1 ? "," : "";
    out += name + "=\"";
    escape(out, value, true);
    out += '"';
  }
  if (!bound.empty()) {
    out += out.size() > 1 ? "," : "";
    out += fmt::format("le=\"{}\"", bound);
  }
  return out + "}";
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()), buckets_(bounds.size() + 1) {}

void Histogram::observe(double value) {
  size_t bucket = size_t(
      std::lower_bound(bounds_.begin(), bounds_.end(), value) -
      bounds_.begin());
  buckets_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

uint64_t Histogram::count() const {
  uint64_t total = 0;
  for (const auto& bucket : buckets_) {
    total += bucket.load(std::memory_order_relaxed);
  }
  return total;
}

std::span<const double> latency_bounds() {
  static constexpr double bounds[] = {
      0.001,
      0.002,
      0.005,
      0.01,
      0.02,
      0.05,
      0.1,
      0.2,
      0.5,
      1,
      2,
      5,
      10,
      20,
      60};
  return bounds;
}

struct Registry::Family {
  struct Figure {
    Labels labels;
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
    std::function<double()> callback;
  };
  Kind kind;
  std::string help;
  std::map<std::string, Figure> figures;  // by the text of their labels

  Figure& figure(Labels labels) {
    Figure& found = figures[label_text(labels)];
    found.labels = std::move(labels);
    return found;
  }
};

Registry::Family& Registry::family(
    const std::string& name, const std::string& help, Kind kind) {
  auto& found = families_[name];
  if (!found) {
    found = std::make_shared<Family>();
    found->kind = kind;
    found->help = help;
  } else if (found->kind != kind) {
    throw std::logic_error("two kinds of metric are named " + name);
  }
  return *found;
}

Counter& Registry::counter(
    const std::string& name, const std::string& help, Labels labels) {
  std::lock_guard lock(mutex_);
  auto& figure = family(name, help, Kind::counter).figure(std::move(labels));
  if (!figure.counter) {
    figure.counter = std::make_unique<Counter>();
  }
  return *figure.counter;
}

Gauge& Registry::gauge(
    const std::string& name, const std::string& help, Labels labels) {
  std::lock_guard lock(mutex_);
  auto& figure = family(name, help, Kind::gauge).figure(std::move(labels));
  if (!figure.gauge) {
    figure.gauge = std::make_unique<Gauge>();
  }
  return *figure.gauge;
}

Histogram& Registry::histogram(
    const std::string& name,
    const std::string& help,
    std::span<const double> bounds,
    Labels labels) {
  std::lock_guard lock(mutex_);
  auto& figure = family(name, help, Kind::histogram).figure(std::move(labels));
  if (!figure.histogram) {
    figure.histogram = std::make_unique<Histogram>(bounds);
  }
  return *figure.histogram;
}

void Registry::callback(
    Kind kind,
    const std::string& name,
    const std::string& help,
    std::function<double()> value,
    Labels labels) {
  if (kind == Kind::histogram) {
    throw std::logic_error("a histogram has no single value: " + name);
  }
  std::lock_guard lock(mutex_);
  family(name, help, kind).figure(std::move(labels)).callback =
      std::move(value);
}

std::string Registry::text() const {
  std::lock_guard lock(mutex_);
  std::string out;
  for (const auto& [name, family] : families_) {
    out += "# HELP " + name + " ";
    escape(out, family->help, false);
    static constexpr std::string_view kKinds[] = {
        "counter", "gauge", "histogram"};
    out += fmt::format("\n# TYPE {} {}\n", name, kKinds[int(family->kind)]);
    for (const auto& [key, figure] : family->figures) {
      if (const Histogram* histogram = figure.histogram.get()) {
        uint64_t total = 0;
        for (size_t i = 0; i < histogram->buckets_.size(); ++i) {
          total += histogram->buckets_[i].load(std::memory_order_relaxed);
          std::string bound = i < histogram->bounds_.size()
                                  ? number(histogram->bounds_[i])
                                  : "+Inf";
          out += fmt::format(
              "{}_bucket{} {}\n",
              name,
              label_text(figure.labels, bound),
              total);
        }
        out += fmt::format(
            "{}_sum{} {}\n{}_count{} {}\n",
            name,
            key,
            number(histogram->sum()),
            name,
            key,
            total);
        continue;
      }
      double value = figure.callback  ? figure.callback()
                     : figure.counter ? figure.counter->value()
                                      : figure.gauge->value();
      out += fmt::format("{}{} {}\n", name, key, number(value));
    }
  }
  return out;
}

namespace {

// A field of /proc/self/status in bytes; 0 where there is none.
double status_bytes(std::string_view field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field)) {
      return std::strtod(line.c_str() + field.size(), nullptr) * 1024;
    }
  }
  return 0;
}

double open_descriptors() {
  std::error_code error;
  double count = 0;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end;
       !error && entry != end;
       entry.increment(error)) {
    ++count;
  }
  return count > 0 ? count - 1 : 0;  // the listing holds one itself
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& time) {
    return double(time.tv_sec) + double(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

void add_process_metrics(Registry& registry) {
  using Kind = Registry::Kind;
  registry.callback(
      Kind::gauge,
      "process_resident_memory_bytes",
      "Resident memory, mapped weights included.",
      [] { return status_bytes("VmRSS:"); });
  registry.callback(
      Kind::gauge,
      "mlxcel_process_anonymous_memory_bytes",
      "Resident memory without mapped files.",
      [] { return status_bytes("RssAnon:"); });
  registry.callback(
      Kind::gauge,
      "process_open_fds",
      "Open file descriptors.",
      open_descriptors);
  registry.callback(
      Kind::counter,
      "process_cpu_seconds_total",
      "User and system processor time.",
      cpu_seconds);
  double started =
      double(std::chrono::duration_cast<std::chrono::milliseconds>(
                 std::chrono::system_clock::now().time_since_epoch())
                 .count()) /
      1e3;
  registry
      .gauge(
          "process_start_time_seconds",
          "Start of the process, seconds since 1970.")
      .set(started);
}

}  // namespace mlxcel::http
