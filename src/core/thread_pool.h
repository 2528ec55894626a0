// A fork-join pool: one job at a time, every thread runs it, the caller is
// thread 0. Waiting threads spin for a short time, then sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

namespace mlxcel {

// Number of CPUs this process may use: affinity mask and cgroup quota, at
// least 1.
int available_cpus();

// CPUs that the control groups (version 1 or 2) of this process grant, e.g.
// 1.5; infinite without a limit. `root` is where proc and sys are mounted.
double cgroup_cpu_quota(const std::filesystem::path& root);

class ThreadPool {
 public:
  // 0 means available_cpus().
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // The threads that take part in jobs.
  int size() const;

  // Runs job(thread) on every thread, thread in [0, size()), and returns when
  // all are done. The first exception thrown by a job is rethrown here. Must
  // not be called from inside a job.
  void run(const std::function<void(int thread)>& job);

  // Between jobs whose results do not depend on size(): takes out a thread
  // whose CPU other work holds so much that the rest would be faster alone, and
  // tries it again later. Cheap enough for every step of a model.
  void adapt();

  // Inside a job: waits until every thread of the pool has arrived. All
  // threads must call it the same number of times.
  void barrier();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The part [begin, end) of `count` items that thread `part` of `parts` gets,
// borders rounded to multiples of `grain`.
std::pair<int64_t, int64_t> split_range(
    int64_t count, int part, int parts, int64_t grain = 1);

}  // namespace mlxcel
