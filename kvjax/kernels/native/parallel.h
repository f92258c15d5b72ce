// Items of work shared out over XLA's own threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

#include "waiting.h"
#include "xla/ffi/api/ffi.h"

namespace kvjax {

// Items that follow one another, of which threads take the first or the last: both ends in one number, so that they change at once.
class Stock {
 public:
  void fill(uint64_t begin, uint64_t end) { ends_.store(begin << 32 | end); }
  int64_t first() { return take(true); }
  int64_t last() { return take(false); }

 private:
  // An item that nobody else gets, or -1.
  int64_t take(bool first) {
    uint64_t ends = ends_.load();
    while (true) {
      const uint64_t begin = ends >> 32, end = ends & 0xffffffffu;
      if (begin >= end) return -1;
      if (ends_.compare_exchange_weak(ends, first ? ends + (uint64_t(1) << 32) : ends - 1)) return first ? begin : end - 1;
    }
  }
  std::atomic<uint64_t> ends_;
};

// The items of one call. Threads go through a stock of their own from its first item on, since neighbours mostly lie side by side in
// memory and the processor reads ahead; those without one take the last of others.
class Job {
 public:
  Job(int64_t items, int64_t stocks, const void* run, void (*call)(const void* run, int64_t item))
      : items_(items), count_(stocks), run_(run), call_(call), stocks_(new Stock[stocks]) {
    for (int64_t i = 0; i < stocks; ++i) stocks_[i].fill(items * i / stocks, items * (i + 1) / stocks);
  }
  void work() {
    for (int64_t mine; (mine = claimed_.fetch_add(1)) < count_;)
      for (int64_t i; (i = stocks_[mine].first()) >= 0;) run(i);
    for (int64_t other = 0; other < count_; ++other)
      for (int64_t i; (i = stocks_[other].last()) >= 0;) run(i);
  }
  bool done() const { return done_.load(std::memory_order_acquire) == items_; }

 private:
  void run(int64_t item) {
    call_(run_, item);
    done_.fetch_add(1, std::memory_order_release);
  }
  const int64_t items_, count_;
  const void* const run_;
  void (*const call_)(const void*, int64_t);
  const std::unique_ptr<Stock[]> stocks_;
  std::atomic<int64_t> claimed_{0}, done_{0};
};

// run(i) for every i below `items`, on this thread and those of the pool; returns when all are done. A helper that starts
// late finds nothing left and touches nothing of the caller's, so that this cannot wait for a thread that never comes.
template <class Run>
void each_item(xla::ffi::ThreadPool& pool, int64_t items, const Run& run) {
  const int64_t threads = std::min<int64_t>(pool.num_threads(), items);
  if (threads < 2) {
    for (int64_t i = 0; i < items; ++i) run(i);
    return;
  }
  const auto call = [](const void* run, int64_t item) { (*static_cast<const Run*>(run))(item); };
  const auto job = std::make_shared<Job>(items, threads, &run, call);
  for (int64_t found = Waiting<Job>::ones().give(job, threads - 1); found < threads - 1; ++found)
    pool.Schedule([job] { Waiting<Job>::ones().help(job); });
  job->work();
  while (!job->done()) std::this_thread::yield();
}

}  // namespace kvjax
