// Weighted sums of values.
#pragma once

#include <algorithm>
#include <type_traits>

#include "products.h"

namespace kvjax {

// Slots attended to as one piece: its scores stay in the first-level cache. A region's pieces begin at its first slot and are
// put together in order, so that its sums do not depend on the threads or on other regions.
constexpr int64_t PIECE = 256;
// Vectors of numbers in a line of cache.
template <class T>
constexpr int LINE = std::max<int>(64 / (WIDTH * sizeof(T)), 1);
// Vectors of a slot's channels whose values are added up in one go.
constexpr int LONG = WIDTH == 16 ? 8 : 4;

// VECTORS vectors of a slot's channels, and whether they are in another order than those: of two vectors of bfloat16 one has the
// channels of even places and the other those between, which takes half as long as widening them.
template <class T, int VECTORS>
constexpr bool MIXED = std::is_same_v<T, BFloat16> && VECTORS > 1;
template <int VECTORS, class T>
inline void read(const T* from, Vec (&numbers)[VECTORS]) {
  if constexpr (MIXED<T, VECTORS>)
    KVJAX_UNROLL for (int j = 0; j < VECTORS; j += 2) {
      const Words both = held(unaligned<Words>(from + j * WIDTH));
      numbers[j] = bits_of<Vec>(both << 16), numbers[j + 1] = bits_of<Vec>(both & 0xffff0000u);
    }
  else
    KVJAX_UNROLL for (int j = 0; j < VECTORS; ++j) numbers[j] = held(load(from + j * WIDTH));
}

// n numbers of vectors that were read as MIXED, in the order of their channels.
inline void ordered(float* numbers, int64_t n) {
  for (int64_t i = 0; i < n; i += 2 * WIDTH) {
    float both[2 * WIDTH];
    std::memcpy(both, numbers + i, sizeof(both));
    for (int64_t j = 0; j < WIDTH; ++j) numbers[i + 2 * j] = both[j], numbers[i + 2 * j + 1] = both[WIDTH + j];
  }
}

// out[row * d + channel] += sum_i weights[row * PIECE + i] v_i over slots [first, end) for R rows and VECTORS vectors of channels;
// the same channels FEW slots ahead, below n, are asked for.
template <int R, int VECTORS, class T, class Slots>
void add(const float* weights, int64_t d, const T* v, Slots slots, int64_t first, int64_t end, int64_t n, float* out) {
  Vec added[R][VECTORS];
  KVJAX_UNROLL for (int r = 0; r < R; ++r)
    KVJAX_UNROLL for (int j = 0; j < VECTORS; ++j) added[r][j] = load(out + r * d + j * WIDTH);
  for (int64_t i = first; i < end; ++i) {
    if (i + FEW < n)  // not `soon`: its loop over channels, not unrolled, costs up to a tenth here
      for (int j = 0; j < VECTORS; j += LINE<T>) __builtin_prefetch(v + slots(i + FEW) * d + j * WIDTH);
    Vec part[VECTORS];
    read(v + slots(i) * d, part);
    KVJAX_UNROLL for (int r = 0; r < R; ++r) {
      const Vec weight = all(weights[r * PIECE + i]);
      KVJAX_UNROLL for (int j = 0; j < VECTORS; ++j) added[r][j] += weight * part[j];
    }
  }
  KVJAX_UNROLL for (int r = 0; r < R; ++r)
    KVJAX_UNROLL for (int j = 0; j < VECTORS; ++j) store(out + r * d + j * WIDTH, added[r][j]);
}

// sum_i weights[row * PIECE + i] v_i of all rows -> out[row * d + channel]. Whole rows of values at a time as far as registers go,
// and few slots, whose values the first-level cache holds until all rows and channels have had them.
template <class T, class Slots>
void weighted(const float* weights, int64_t rows, int64_t d, const T* v, Slots slots, int64_t n, float* out) {
  const int64_t wide = d / (LONG * WIDTH) * LONG * WIDTH, narrow = d / (4 * WIDTH) * 4 * WIDTH;
  std::fill_n(out, rows * d, 0.0f);
  if constexpr (Slots::LISTED) soon(v, d, slots, 0, FEW, n);
  for (int64_t first = 0; first < n; first += FEW) {
    const int64_t end = std::min(first + FEW, n);
    // The first rows ask for what comes, where it is not what lies next in memory: the limit of the others is 0.
    const auto limit = [&](int64_t r, int vectors) { return r == 0 && (Slots::LISTED || vectors * WIDTH < d) ? n : 0; };
    for (int64_t c = 0; c < wide; c += LONG * WIDTH) {
      int64_t r = 0;
      for (; r + 2 <= rows; r += 2)
        add<2, LONG>(weights + r * PIECE, d, v + c, slots, first, end, limit(r, LONG), out + r * d + c);
      if (r < rows) add<1, LONG>(weights + r * PIECE, d, v + c, slots, first, end, limit(r, LONG), out + r * d + c);
    }
    by_rows(rows, [&](auto many, int64_t r) {
      constexpr int R = decltype(many)::value;
      const float* mine = weights + r * PIECE;
      float* to = out + r * d;
      for (int64_t c = wide; c < narrow; c += 4 * WIDTH) add<R, 4>(mine, d, v + c, slots, first, end, limit(r, 4), to + c);
      for (int64_t c = narrow; c < d; c += WIDTH) add<R, 1>(mine, d, v + c, slots, first, end, limit(r, 1), to + c);
    });
  }
  if constexpr (MIXED<T, 4>)
    for (int64_t r = 0; r < rows; ++r) ordered(out + r * d, narrow);
}

}  // namespace kvjax
