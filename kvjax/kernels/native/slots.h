// Which slots of a pool a list is, and how their numbers are asked for before they are needed.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvjax {

// Slots whose keys or values are worked on in one go.
constexpr int64_t FEW = 32;

// Which slots a list is: a stretch of the pool, or named one by one.
struct Stretch {
  static constexpr bool LISTED = false;
  int64_t first;
  int64_t operator()(int64_t i) const { return first + i; }
  Stretch from(int64_t i) const { return {first + i}; }
};
struct Listed {
  static constexpr bool LISTED = true;
  const int32_t* slots;
  int64_t limit;
  int64_t operator()(int64_t i) const { return std::clamp<int64_t>(slots[i], 0, limit - 1); }
  Listed from(int64_t i) const { return {slots + i, limit}; }
};

// Asks for the numbers of slots [begin, end) of n. The processor looks ahead within a page by itself, but not over its end, and
// not along listed slots; who works for long between two readings asks for a few slots at a time, since many wait for one another.
template <class T, class Slots>
inline void soon(const T* pool, int64_t d, const Slots& slots, int64_t begin, int64_t end, int64_t n) {
  const auto ask = [](const T* from, const T* to) {
    for (; from < to; from += 64 / sizeof(T)) __builtin_prefetch(from);
  };
  end = std::min(end, n);
  if constexpr (!Slots::LISTED) return ask(pool + slots(begin) * d, pool + slots(end) * d);
  for (int64_t i = begin; i < end; ++i) ask(pool + slots(i) * d, pool + slots(i) * d + d);
}

}  // namespace kvjax
