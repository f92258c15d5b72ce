// Threads that have helped and wait a moment for the next call: waking one takes tens of microseconds, which is a layer's attention.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kvjax {

// Which processor this thread runs on, or -1 where that cannot be asked.
inline int processor() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

// Which thread this is to the system's scheduler.
inline int thread_id() {
#if defined(__linux__)
  return syscall(SYS_gettid);  // gettid() is younger than some C libraries
#else
  return 0;
#endif
}

// Puts a thread on another processor than `taken`; it may come back later.
inline void move_away(int thread, int taken) {
#if defined(__linux__)
  cpu_set_t all, others;
  if (sched_getaffinity(thread, sizeof(all), &all)) return;
  others = all;
  CPU_CLR(taken, &others);
  if (CPU_COUNT(&others) && !sched_setaffinity(thread, sizeof(others), &others)) sched_setaffinity(thread, sizeof(all), &all);
#endif
}

// Nothing, for the few cycles that a waiting loop should leave to others.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

template <class Job>
class Waiting {
 public:
  static Waiting& ones() {
    static Waiting* all = new Waiting;  // never destroyed: threads may wait when the process ends
    return *all;
  }

  // Gives a job to up to `most` of them, and tells to how many. One that shares this thread's processor is moved: it would wait until
  // this thread has done all of the work, which two threads of a virtual machine do for milliseconds while another processor idles.
  int64_t give(const std::shared_ptr<Job>& job, int64_t most) {
    const int mine = processor();
    std::lock_guard<std::mutex> guard(lock_);
    int64_t given = 0;
    for (; given < most && !threads_.empty(); ++given, threads_.pop_back()) {
      Thread& helper = *threads_.back();
      helper.job = job;
      if (mine >= 0 && helper.processor.load(std::memory_order_relaxed) == mine) move_away(helper.id, mine);
      helper.called.store(true, std::memory_order_release);
    }
    return given;
  }

  // Helps with a job, and then with those that are given to this thread until it has waited in vain.
  void help(std::shared_ptr<Job> job) {
    for (; job; job = next()) job->work();
  }

 private:
  struct Thread {
    const int id = thread_id();
    std::atomic<int> processor{kvjax::processor()};
    std::atomic<bool> called{false};
    std::shared_ptr<Job> job;
  };

  // Longer than what lies between the calls of a decode step, and short beside anything else that wants XLA's threads.
  static constexpr std::chrono::microseconds PATIENCE{50};
  // Looks for a job between two offers of the processor to others.
  static constexpr int TURNS = 64;

  std::shared_ptr<Job> next() {
    Thread me;
    {
      std::lock_guard<std::mutex> guard(lock_);
      threads_.push_back(&me);
    }
    const auto end = std::chrono::steady_clock::now() + PATIENCE;
    for (int turn = 1; !me.called.load(std::memory_order_acquire); ++turn) {
      pause();
      if (turn % TURNS) continue;
      if (std::chrono::steady_clock::now() > end) break;
      std::this_thread::yield();
      me.processor.store(processor(), std::memory_order_relaxed);
    }
    std::lock_guard<std::mutex> guard(lock_);
    if (!me.called.load()) threads_.erase(std::find(threads_.begin(), threads_.end(), &me));
    return std::move(me.job);
  }

  std::mutex lock_;
  std::vector<Thread*> threads_;
};

}  // namespace kvjax
