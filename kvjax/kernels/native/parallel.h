// Items of work shared out over XLA's own threads, first come first served.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace kvjax {

// run(i) for every i below `items`, on this thread and those of the pool; returns when all are done. A helper that starts
// late finds nothing left and touches nothing of the caller's, so that this cannot wait for a thread that never comes.
template <class Run>
void each_item(xla::ffi::ThreadPool& pool, int64_t items, const Run& run) {
  struct Shared {
    std::atomic<int64_t> next{0}, done{0};
  };
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), items) - 1;
  if (helpers < 1) {
    for (int64_t i = 0; i < items; ++i) run(i);
    return;
  }
  auto shared = std::make_shared<Shared>();
  auto work = [shared, items, &run] {
    for (int64_t i; (i = shared->next.fetch_add(1)) < items;) {
      run(i);
      shared->done.fetch_add(1, std::memory_order_release);
    }
  };
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule(decltype(work)(work));
  work();
  while (shared->done.load(std::memory_order_acquire) < items) std::this_thread::yield();
}

}  // namespace kvjax
