#include "core/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sched.h>
#include <sys/resource.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace mlxcel {

namespace {

using Clock = std::chrono::steady_clock;

// A decode step calls run() every few microseconds, so a waiting thread stays
// awake across the gaps between ops and between steps.
constexpr auto kSpinTime = std::chrono::microseconds(60);
// Past this a spinning thread offers its CPU to others at each look.
constexpr auto kYieldAfter = std::chrono::microseconds(15);
constexpr int kLooksBetweenClockReads = 64;
// The least time between two moves of a thread to another CPU.
constexpr auto kMoveInterval = std::chrono::milliseconds(1);

// The least time between two looks at how the threads get on.
constexpr auto kAdaptInterval = std::chrono::milliseconds(10);
// How long a thread may cost more than it gives before it is left out: what
// other programs do for a moment is over sooner.
constexpr auto kPatience = std::chrono::milliseconds(30);
// How long it is left out, at first and at most.
constexpr auto kFirstRest = std::chrono::milliseconds(100);
constexpr auto kLongestRest = std::chrono::seconds(2);

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Lets threads wait for a condition on atomics: spinning first, then asleep.
// Whoever makes the condition true calls wake() after its atomic write.
class Waiter {
 public:
  // Waits that last longer than kYieldAfter are added to `waited`, and call
  // `late`.
  template <typename Ready, typename Late>
  void wait(
      Ready ready,
      bool spin,
      Late late,
      std::atomic<int64_t>* waited = nullptr) {
    Clock::time_point start{};
    if (!spin_until(ready, spin, late, &start)) {
      sleep_until(ready);
    }
    if (waited != nullptr && start != Clock::time_point{}) {
      auto time = Clock::now() - start;
      if (time > kYieldAfter) {
        waited->fetch_add(
            std::chrono::nanoseconds(time).count(), std::memory_order_relaxed);
      }
    }
  }

  void wake() {
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard lock(mutex_);
      changed_.notify_all();
    }
  }

 private:
  template <typename Ready>
  void sleep_until(Ready& ready) {
    std::unique_lock lock(mutex_);
    // Sequentially consistent with wake(): either it sees the sleeper, or the
    // sleeper sees the condition.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    changed_.wait(lock, ready);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

  // `start` receives when the wait began, where it outlasts the first looks.
  template <typename Ready, typename Late>
  static bool spin_until(
      Ready& ready, bool spin, Late& late, Clock::time_point* start) {
    if (!spin) {  // more threads than CPUs: spinning would keep others waiting
      for (int i = 0; i < 4; ++i) {
        if (ready()) {
          return true;
        }
        std::this_thread::yield();
      }
      return ready();
    }
    for (int i = 0; i < kLooksBetweenClockReads; ++i) {
      if (ready()) {
        return true;
      }
      relax();
    }
    *start = Clock::now();
    for (;;) {
      auto waited = Clock::now() - *start;
      if (waited > kSpinTime) {
        return ready();
      }
      if (waited > kYieldAfter) {
        if (ready()) {
          return true;
        }
        late();
        std::this_thread::yield();
        continue;
      }
      for (int i = 0; i < kLooksBetweenClockReads; ++i) {
        if (ready()) {
          return true;
        }
        relax();
      }
    }
  }

  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

// How often other work took a CPU from this process's threads.
int64_t preemptions() {
#ifdef __linux__
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
#else
  return 0;
#endif
}

#ifdef __linux__
// A set of CPUs of any machine; a fixed cpu_set_t ends at 1024.
class CpuSet {
 public:
  // Those that a thread may use (0: the calling one); empty when unknown.
  static CpuSet of(pid_t thread) {
    for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
      CpuSet set(capacity);
      if (sched_getaffinity(thread, set.bytes(), set.data()) == 0) {
        return set;
      }
    }
    return CpuSet(0);
  }
  explicit CpuSet(int capacity)
      : capacity_(capacity),
        words_(capacity > 0 ? CPU_ALLOC_SIZE(capacity) / sizeof(long) : 0) {}

  int count() const {
    return capacity_ > 0 ? CPU_COUNT_S(bytes(), data()) : 0;
  }
  int capacity() const {
    return capacity_;
  }
  bool has(int cpu) const {
    return cpu >= 0 && cpu < capacity_ && CPU_ISSET_S(cpu, bytes(), data());
  }
  void add(int cpu) {
    if (cpu >= 0 && cpu < capacity_) {
      CPU_SET_S(cpu, bytes(), data());
    }
  }
  // The first CPU that `taken` has not, or -1.
  int first_without(const CpuSet& taken) const {
    for (int cpu = 0; cpu < capacity_; ++cpu) {
      if (has(cpu) && !taken.has(cpu)) {
        return cpu;
      }
    }
    return -1;
  }
  bool apply(pid_t thread) const {
    return sched_setaffinity(thread, bytes(), data()) == 0;
  }

 private:
  size_t bytes() const {
    return words_.size() * sizeof(long);
  }
  cpu_set_t* data() {
    return reinterpret_cast<cpu_set_t*>(words_.data());
  }
  const cpu_set_t* data() const {
    return reinterpret_cast<const cpu_set_t*>(words_.data());
  }

  int capacity_;
  std::vector<long> words_;
};
#endif

// Which thread of its job's pool this one is; the caller's is the first.
thread_local int own_index = 0;

// Ends a job on the threads that wait at a barrier another one never reaches.
struct BarrierBroken {};

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// Quota over period of one group; infinite when it has no limit.
double v2_quota(const std::filesystem::path& group) {
  std::istringstream in(first_line(group / "cpu.max"));  // "max 100000"
  double quota = 0, period = 0;
  if (in >> quota >> period && quota > 0 && period > 0) {
    return quota / period;
  }
  return INFINITY;
}

double v1_quota(const std::filesystem::path& group) {
  std::istringstream quota_in(first_line(group / "cpu.cfs_quota_us"));
  std::istringstream period_in(first_line(group / "cpu.cfs_period_us"));
  double quota = 0, period = 0;  // quota -1: no limit
  if (quota_in >> quota && period_in >> period && quota > 0 && period > 0) {
    return quota / period;
  }
  return INFINITY;
}

// The least of a group's quota and those of the groups that hold it.
template <typename Read>
double least_quota(
    const std::filesystem::path& mount, const std::string& group, Read read) {
  double least = read(mount);
  std::filesystem::path path = mount;
  for (const auto& part : std::filesystem::path(group).relative_path()) {
    path /= part;
    least = std::min(least, read(path));
  }
  return least;
}

}  // namespace

double cgroup_cpu_quota(const std::filesystem::path& root) {
  double least = INFINITY;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "hierarchy-id:controllers:path"; version 2 has no controllers.
    size_t first = line.find(':');
    size_t second =
        first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    std::string controllers = line.substr(first + 1, second - first - 1);
    std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      least =
          std::min(least, least_quota(root / "sys/fs/cgroup", group, v2_quota));
      continue;
    }
    std::istringstream names(controllers);
    for (std::string name; std::getline(names, name, ',');) {
      if (name == "cpu") {
        for (const std::string& mount : {std::string("cpu"), controllers}) {
          least = std::min(
              least,
              least_quota(root / "sys/fs/cgroup" / mount, group, v1_quota));
        }
      }
    }
  }
  return least;
}

int available_cpus() {
  int cpus = int(std::thread::hardware_concurrency());
#ifdef __linux__
  if (int count = CpuSet::of(0).count(); count > 0) {
    cpus = count;
  }
#endif
  double quota = cgroup_cpu_quota("/");
  if (quota < cpus) {
    cpus = int(std::lround(quota));
  }
  return std::max(cpus, 1);
}

struct ThreadPool::State {
  int threads = 1;  // that take part in jobs: the first ones
  int all = 1;
  bool spin = true;
  std::vector<std::thread> workers;

  // Written by the caller before `epoch`, read by workers after it.
  const std::function<void(int)>* job = nullptr;
  bool stop = false;
  std::mutex error_mutex;
  std::exception_ptr error;

  // Counts jobs, above 16 bits that say how many threads take part.
  alignas(64) std::atomic<uint64_t> epoch{0};
  alignas(64) std::atomic<int> running{0};     // workers not done yet
  alignas(64) std::atomic<int> arrived{0};     // at the barrier
  alignas(64) std::atomic<uint32_t> phase{0};  // counts barriers passed
  std::atomic<bool> failed{false};
  Waiter started, finished, passed, parked;

  // Where each thread was when its last job began.
  struct alignas(64) Place {
    std::atomic<int> cpu{-1};
    Clock::time_point moved{};  // the thread's own
  };
  std::unique_ptr<Place[]> places;

  // What adapt() goes by.
  alignas(64) std::atomic<int64_t> waited{0};  // ns, all threads
  Clock::time_point window = Clock::now();
  int64_t window_preemptions = 0;
  Clock::duration late = {};  // how long threads have waited too much
  Clock::duration rest = kFirstRest;
  Clock::time_point rest_ends{};

  static int members(uint64_t epoch) {
    return int(epoch & 0xffff);
  }

  void run_job(int thread) {
#ifdef __linux__
    places[size_t(thread)].cpu.store(sched_getcpu(), std::memory_order_relaxed);
#endif
    try {
      (*job)(thread);
    } catch (const BarrierBroken&) {
    } catch (...) {
      {
        std::lock_guard lock(error_mutex);
        if (!error) {
          error = std::current_exception();
        }
      }
      failed.store(true, std::memory_order_seq_cst);
      passed.wake();
    }
  }

  void work(int thread) {
    own_index = thread;
    uint64_t seen = 0;
    for (;;) {
      started.wait(
          [&] { return epoch.load(std::memory_order_seq_cst) != seen; },
          spin,
          [&] { leave_shared_cpu(thread); });
      // Jobs go on without threads that take no part, so that this may be a
      // later one; a job of this thread's waits for it.
      seen = epoch.load(std::memory_order_seq_cst);
      if (members(seen) <= thread) {
        parked.wait(
            [&] {
              return members(epoch.load(std::memory_order_seq_cst)) > thread;
            },
            false,
            [] {});
        continue;
      }
      if (stop) {
        return;
      }
      run_job(thread);
      if (running.fetch_sub(1, std::memory_order_seq_cst) == 1) {
        finished.wake();
      }
    }
  }

  void begin() {
    uint64_t last = epoch.load(std::memory_order_relaxed);
    epoch.store(
        ((last >> 16) + 1) << 16 | uint64_t(threads),
        std::memory_order_seq_cst);
    started.wake();
    if (members(last) < threads) {
      parked.wake();
    }
  }

  // A thread that waits on the CPU of another one moves to a free CPU. The
  // system puts both on one when another program has the second CPU as one of
  // them awakes, and leaves them there: they seldom rest long enough for it to
  // move them. They stay free to move.
  void leave_shared_cpu(int thread) {
#ifdef __linux__
    Place& place = places[size_t(thread)];
    auto now = Clock::now();
    if (now - place.moved < kMoveInterval) {
      return;
    }
    const int cpu = sched_getcpu();
    // Those of the last job: adapt() may change the number meanwhile.
    const int taking_part = members(epoch.load(std::memory_order_relaxed));
    bool shared = false;
    for (int other = 0; other < taking_part && !shared; ++other) {
      shared = other != thread &&
               places[size_t(other)].cpu.load(std::memory_order_relaxed) == cpu;
    }
    if (!shared) {
      return;
    }
    place.moved = now;
    CpuSet allowed = CpuSet::of(0), taken(allowed.capacity());
    taken.add(cpu);
    for (int other = 0; other < taking_part; ++other) {
      if (other != thread) {
        taken.add(places[size_t(other)].cpu.load(std::memory_order_relaxed));
      }
    }
    int to = allowed.first_without(taken);
    if (to < 0) {
      return;
    }
    CpuSet only(allowed.capacity());
    only.add(to);
    if (only.apply(0)) {
      allowed.apply(0);
      place.cpu.store(to, std::memory_order_relaxed);
    }
#endif
  }

  void shut_down() {
    stop = true;
    threads = all;
    begin();
    for (auto& worker : workers) {
      worker.join();
    }
  }
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>()) {
  int cpus = available_cpus();
  state_->threads = state_->all = threads > 0 ? threads : cpus;
  state_->places = std::make_unique<State::Place[]>(size_t(state_->all));
  state_->spin = state_->threads <= cpus;
  try {
    for (int thread = 1; thread < state_->all; ++thread) {
      state_->workers.emplace_back(
          [state = state_.get(), thread] { state->work(thread); });
    }
  } catch (...) {  // the system has no more threads
    state_->shut_down();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  state_->shut_down();
}

int ThreadPool::size() const {
  return state_->threads;
}

void ThreadPool::run(const std::function<void(int thread)>& job) {
  State& state = *state_;
  state.job = &job;
  state.arrived.store(0, std::memory_order_relaxed);
  state.failed.store(false, std::memory_order_relaxed);
  if (state.threads > 1) {
    state.running.store(state.threads - 1, std::memory_order_relaxed);
    state.begin();
  }
  const int outer = std::exchange(own_index, 0);
  state.run_job(0);
  own_index = outer;
  if (state.threads > 1) {
    state.finished.wait(
        [&] { return state.running.load(std::memory_order_seq_cst) == 0; },
        state.spin,
        [&] { state.leave_shared_cpu(0); },
        &state.waited);
  }
  if (state.error) {
    std::rethrow_exception(std::exchange(state.error, nullptr));
  }
}

void ThreadPool::adapt() {
  State& state = *state_;
  auto now = Clock::now();
  if (state.all == 1 || now - state.window < kAdaptInterval) {
    return;
  }
  // What the others' waiting for late threads costs, in threads.
  double lost = double(state.waited.exchange(0, std::memory_order_relaxed)) /
                double(std::chrono::nanoseconds(now - state.window).count());
  int64_t count = preemptions();
  bool preempted = count > std::exchange(state.window_preemptions, count);
  Clock::duration time = now - std::exchange(state.window, now);
  // A thread that runs a share p of the time makes all n do n p of the work;
  // without it they do n - 1, which is more when the n - 1 others wait for
  // 1 - p > 1 / n of the time.
  int n = state.threads;
  bool late = n > 1 && preempted && lost * n > 0.9 * (n - 1);
  state.late = late ? state.late + time : Clock::duration{};
  if (state.late > kPatience) {
    state.late = {};
    --state.threads;
    state.rest_ends = now + state.rest;
    state.rest = std::min<Clock::duration>(2 * state.rest, kLongestRest);
  } else if (n < state.all && now >= state.rest_ends) {
    ++state.threads;
  } else if (n == state.all && !late) {
    state.rest = std::max<Clock::duration>(state.rest * 7 / 8, kFirstRest);
  }
}

void ThreadPool::barrier() {
  State& state = *state_;
  if (state.threads == 1) {
    return;
  }
  // Sense reversal: the last to arrive opens the next phase, and the count is
  // ready for the next barrier before anyone can reach it.
  uint32_t phase = state.phase.load(std::memory_order_relaxed);
  if (state.arrived.fetch_add(1, std::memory_order_acq_rel) ==
      state.threads - 1) {
    state.arrived.store(0, std::memory_order_relaxed);
    state.phase.store(phase + 1, std::memory_order_seq_cst);
    state.passed.wake();
    return;
  }
  auto open = [&] {
    return state.phase.load(std::memory_order_seq_cst) != phase;
  };
  state.passed.wait(
      [&] { return open() || state.failed.load(std::memory_order_seq_cst); },
      state.spin,
      [&] { state.leave_shared_cpu(own_index); },
      &state.waited);
  if (!open()) {
    throw BarrierBroken();
  }
}

std::pair<int64_t, int64_t> split_range(
    int64_t count, int part, int parts, int64_t grain) {
  int64_t grains = (count + grain - 1) / grain;
  int64_t begin = grains * part / parts * grain;
  int64_t end = grains * (part + 1) / parts * grain;
  return {std::min(begin, count), std::min(end, count)};
}

}  // namespace mlxcel
