#include "core/thread_pool.h"

#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

namespace mlxcel {
namespace {

TEST(ThreadPool, RunsTheJobOnEveryThreadOnce) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.size(), threads);
    std::vector<int> calls(static_cast<size_t>(threads));
    for (int i = 0; i < 200; ++i) {
      pool.run([&](int thread) { ++calls[size_t(thread)]; });
    }
    EXPECT_THAT(calls, ::testing::Each(200));
  }
}

TEST(ThreadPool, UsesWhatTheProcessMayUse) {
  EXPECT_EQ(ThreadPool().size(), available_cpus());
  EXPECT_GE(available_cpus(), 1);
}

TEST(ThreadPool, BarrierSeparatesThePhases) {
  for (int threads : {2, 3, 5}) {
    ThreadPool pool(threads);
    std::vector<int> values(static_cast<size_t>(threads));
    std::atomic<int> wrong{0};
    for (int i = 0; i < 50; ++i) {
      pool.run([&](int thread) {
        for (int phase = 1; phase <= 20; ++phase) {
          values[size_t(thread)] = phase;
          pool.barrier();
          for (int value : values) {
            wrong += value != phase;
          }
          pool.barrier();
        }
      });
    }
    EXPECT_EQ(wrong, 0) << threads << " threads";
  }
}

// However many threads adapt() leaves, each runs every job once.
TEST(ThreadPool, AdaptsBetweenJobs) {
  for (int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    std::atomic<bool> stop{false};
    std::vector<std::thread> others;
    for (int i = 0; i < available_cpus(); ++i) {
      others.emplace_back([&] {
        while (!stop) {
        }
      });
    }
    auto end =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    while (std::chrono::steady_clock::now() < end) {
      pool.adapt();
      int size = pool.size();
      ASSERT_GE(size, 1);
      ASSERT_LE(size, threads);
      std::vector<int> calls(static_cast<size_t>(threads));
      std::atomic<int> wrong{0};
      pool.run([&](int thread) {
        ++calls[size_t(thread)];
        pool.barrier();
        for (int i = 0; i < threads; ++i) {
          wrong += calls[size_t(i)] != (i < size ? 1 : 0);
        }
      });
      EXPECT_EQ(wrong, 0);
    }
    stop = true;
    for (std::thread& other : others) {
      other.join();
    }
  }
}

#ifdef __linux__
// Threads that share a CPU move apart; none stays bound to one.
TEST(ThreadPool, LeavesThreadsTheirCpus) {
  ThreadPool pool(available_cpus());
  auto allowed = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    return set;
  };
  const cpu_set_t before = allowed();
  std::atomic<int> changed{0};
  for (int i = 0; i < 100; ++i) {
    int cpu = sched_getcpu();
    pool.run([&](int thread) {
      if (thread > 0) {  // to where the caller is
        cpu_set_t only;
        CPU_ZERO(&only);
        CPU_SET(cpu, &only);
        sched_setaffinity(0, sizeof only, &only);
        sched_setaffinity(0, sizeof before, &before);
      }
    });
    auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
    pool.run([&](int) {
      while (std::chrono::steady_clock::now() < end) {
      }
      pool.barrier();
    });
    pool.adapt();
    pool.run([&](int) {
      cpu_set_t now = allowed();
      changed += CPU_EQUAL(&now, &before) ? 0 : 1;
    });
  }
  EXPECT_EQ(changed, 0);
}
#endif

TEST(ThreadPool, RethrowsAndStaysUsable) {
  ThreadPool pool(3);
  for (int thrower = 0; thrower < 3; ++thrower) {
    try {
      pool.run([&](int thread) {
        if (thread == thrower) {
          throw std::runtime_error("from a job");
        }
      });
      FAIL() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "from a job");
    }
  }
  std::atomic<int> ran{0};
  pool.run([&](int) { ++ran; });
  EXPECT_EQ(ran, 3);
}

TEST(ThreadPool, ExceptionFreesTheThreadsAtTheBarrier) {
  ThreadPool pool(3);
  for (int i = 0; i < 20; ++i) {
    EXPECT_THROW(
        pool.run([&](int thread) {
          if (thread == i % 3) {
            throw std::invalid_argument("before the barrier");
          }
          pool.barrier();
        }),
        std::invalid_argument);
  }
  std::atomic<int> passed{0};
  pool.run([&](int) {
    pool.barrier();
    ++passed;
  });
  EXPECT_EQ(passed, 3);
}

TEST(ThreadPool, MoreThreadsThanCpus) {
  ThreadPool pool(4 * available_cpus() + 3);
  std::atomic<int> ran{0};
  for (int i = 0; i < 20; ++i) {
    pool.run([&](int) {
      pool.barrier();
      ++ran;
      pool.barrier();
    });
  }
  EXPECT_EQ(ran, 20 * pool.size());
}

double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

// A spinning thread would use all of the time that passes here.
TEST(ThreadPool, IdleThreadsSleepAndWakeAgain) {
  ThreadPool pool(4);
  pool.run([](int) {});
  double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_seconds() - before, 0.1);
  std::atomic<int> ran{0};
  pool.run([&](int) { ++ran; });
  EXPECT_EQ(ran, 4);
}

TEST(SplitRange, CoversAllOnceInOrder) {
  for (int64_t count : {0, 1, 7, 64, 1000}) {
    for (int parts : {1, 2, 3, 8}) {
      for (int64_t grain : {1, 4, 16}) {
        int64_t next = 0;
        for (int part = 0; part < parts; ++part) {
          auto [begin, end] = split_range(count, part, parts, grain);
          EXPECT_EQ(begin, next);
          EXPECT_LE(begin, end);
          EXPECT_TRUE(end == count || end % grain == 0);
          next = end;
        }
        EXPECT_EQ(next, count);
      }
    }
  }
}

class CgroupQuota : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    std::filesystem::path path = root() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::filesystem::path root() const {
    return folder_.path();
  }
  testing::TemporaryFolder folder_;
};

TEST_F(CgroupQuota, NoneWithoutGroups) {
  EXPECT_TRUE(std::isinf(cgroup_cpu_quota(root())));
}

TEST_F(CgroupQuota, VersionTwoTakesTheLeastOfTheParents) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_DOUBLE_EQ(cgroup_cpu_quota(root()), 1.5);
  write("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
  EXPECT_DOUBLE_EQ(cgroup_cpu_quota(root()), 0.5);
}

TEST_F(CgroupQuota, VersionOne) {
  write(
      "proc/self/cgroup",
      "12:memory:/job\n4:cpu,cpuacct:/job\n1:name=systemd:/job\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n");
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(cgroup_cpu_quota(root()), 3);
  write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_TRUE(std::isinf(cgroup_cpu_quota(root())));
}

TEST_F(CgroupQuota, GarbageIsNoLimit) {
  write("proc/self/cgroup", "0::/a\nnonsense\n:\n");
  write("sys/fs/cgroup/a/cpu.max", "-5 x\n");
  EXPECT_TRUE(std::isinf(cgroup_cpu_quota(root())));
}

}  // namespace
}  // namespace mlxcel
