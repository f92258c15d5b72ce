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

// Asks for the numbers of listed slots [begin, end) of n: the processor looks ahead by itself only along a stretch.
template <class T>
inline void soon(const T* pool, int64_t d, const Listed& slots, int64_t begin, int64_t end, int64_t n) {
  for (int64_t i = begin; i < std::min(end, n); ++i)
    for (int64_t c = 0; c < d; c += 64 / sizeof(T)) __builtin_prefetch(pool + slots(i) * d + c);
}

// Asks for a number of every few listed slots long before they are needed: where they lie is looked up meanwhile, and readings that
// follow in their neighbourhood are foreseen.
template <class T>
inline void looked_up(const T* pool, int64_t d, const Listed& slots, int64_t n) {
  for (int64_t i = 0; i < n; i += 8) __builtin_prefetch(pool + slots(i) * d);
}
template <class T>
inline void looked_up(const T*, int64_t, const Stretch&, int64_t) {}

// Memory that is asked for a share at a time, while something else is computed: into the second cache, because the first is full of that.
class Ahead {
 public:
  void add(const void* from, int64_t bytes) {
    if (bytes > 0) from_[count_] = static_cast<const char*>(from), lines_[count_] = (bytes + LINE - 1) / LINE, left_ += lines_[count_++];
  }
  // So many shares are asked for until all is.
  void in(int64_t shares) { share_ = shares > 0 ? (left_ + shares - 1) / shares : 0; }
  void next() { lines(share_); }
  // As many lines at once as are on their way meanwhile.
  void some() { lines(SOME); }

 private:
  void lines(int64_t most) {
    for (int64_t many = std::min(most, left_); many > 0;) {
      const int64_t now = std::min(many, lines_[0]);
      const char* from = from_[0];  // by itself: what is changed in memory and read again at each line takes longer than the lines
      for (int64_t i = 0; i < now; ++i) __builtin_prefetch(from + i * LINE, 0, 2);
      from_[0] = from + now * LINE, lines_[0] -= now, left_ -= now, many -= now;
      if (lines_[0] == 0) from_[0] = from_[1], lines_[0] = lines_[1], from_[1] = from_[2], lines_[1] = lines_[2];
    }
  }

  static constexpr int64_t LINE = 64, SOME = 32;
  const char* from_[3] = {};
  int64_t lines_[3] = {}, left_ = 0, share_ = 0;
  int count_ = 0;
};

}  // namespace kvjax
