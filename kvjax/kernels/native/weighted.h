// Weighted sums of values.
#pragma once

#include <algorithm>

#include "products.h"
#include "share.h"

namespace kvjax {

// Slots attended to as one piece: its scores stay in the first-level cache. A region's pieces begin at its first slot and are
// put together in order, so that its sums do not depend on the threads or on other regions.
constexpr int64_t PIECE = 256;
// Vectors of numbers in a line of cache.
template <class T>
constexpr int LINE = std::max<int>(64 / (WIDTH * sizeof(T)), 1);
// Vectors of a slot's channels whose values are added up in one go.
constexpr int LONG = WIDTH == 16 ? 8 : 4;

// out[row * d + channel] += sum_i weights[row * PIECE + i] v_i over slots [first, end) for R rows and VECTORS vectors of channels;
// the same channels FEW slots ahead, below n, are asked for. Slots are a multiple of those multiplied at a time, or one, whose
// partner is zeros: its own numbers would do, but for infinities.
template <int R, int VECTORS, class W, class T, class Slots>
void add(const W* weights, int64_t d, const T* v, Slots slots, int64_t first, int64_t end, int64_t n, float* out) {
  Vec added[R][VECTORS];
  KVJAX_UNROLL for (int r = 0; r < R; ++r)
    KVJAX_UNROLL for (int j = 0; j < VECTORS; ++j) added[r][j] = load(out + r * d + j * WIDTH);
  using S = Share<W, T>;
  static constexpr T ZEROS[VECTORS * WIDTH] = {};
  const bool alone = end - first < S::SLOTS;
  for (int64_t i = first; i < end; i += S::SLOTS) {
    if (i + FEW < n)  // not `soon`: its loop over channels, not unrolled, costs up to a tenth here
      KVJAX_UNROLL for (int s = 0; s < S::SLOTS; ++s)
        for (int j = 0; j < VECTORS; j += LINE<T>) __builtin_prefetch(v + slots(std::min(i + FEW + s, n - 1)) * d + j * WIDTH);
    typename S::Register part[VECTORS];
    S::read(v + slots(i) * d, alone ? ZEROS : v + slots(i + S::SLOTS - 1) * d, part);
    KVJAX_UNROLL for (int r = 0; r < R; ++r) {
      const auto weight = S::all(weights + r * PIECE + i);
      KVJAX_UNROLL for (int j = 0; j < VECTORS; ++j) added[r][j] = S::add(added[r][j], weight, part[j]);
    }
  }
  KVJAX_UNROLL for (int r = 0; r < R; ++r)
    KVJAX_UNROLL for (int j = 0; j < VECTORS; ++j) store(out + r * d + j * WIDTH, added[r][j]);
}

// sum_i weights[row * PIECE + i] v_i of all rows -> out[row * d + channel], of weights in float32 or, with a 0 behind an odd
// number of them, in bfloat16. Whole rows of values at a time as far as registers go, and few slots, whose values the first-level
// cache holds until all rows and channels have had them.
template <class W, class T, class Slots>
void weighted(const W* weights, int64_t rows, int64_t d, const T* v, Slots slots, int64_t n, float* out) {
  const int64_t wide = d / (LONG * WIDTH) * LONG * WIDTH, narrow = d / (4 * WIDTH) * 4 * WIDTH;
  std::fill_n(out, rows * d, 0.0f);
  if constexpr (Slots::LISTED) soon(v, d, slots, 0, FEW, n);
  constexpr int64_t AT_A_TIME = Share<W, T>::SLOTS;
  for (int64_t first = 0, end; first < n; first = end) {
    end = std::min(first + FEW, std::max(n / AT_A_TIME * AT_A_TIME, first + 1));
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
      const W* mine = weights + r * PIECE;
      float* to = out + r * d;
      for (int64_t c = wide; c < narrow; c += 4 * WIDTH) add<R, 4>(mine, d, v + c, slots, first, end, limit(r, 4), to + c);
      for (int64_t c = narrow; c < d; c += WIDTH) add<R, 1>(mine, d, v + c, slots, first, end, limit(r, 1), to + c);
    });
  }
  for (int64_t r = 0; r < rows; ++r) Share<W, T>::order(out + r * d, narrow);
}

}  // namespace kvjax
