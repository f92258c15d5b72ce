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
// Vectors of a slot's channels whose values are added up in one go, and query rows whose sums of so many vectors fit the registers
// beside the values and, where memory is no operand of a product, a weight.
constexpr int LONG = WIDTH == 16 ? 8 : 4;
constexpr int rows_beside(int vectors) {
  const int rows = WIDTH == 16 ? 32 / vectors - 1 : (16 - 1) / vectors - 1;
  return rows < 8 ? rows : 8;
}

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
    KVJAX_UNROLL for (int r = 0; r < R; ++r)
      KVJAX_UNROLL for (int j = 0; j < VECTORS; ++j) S::add(added[r][j], weights + r * PIECE + i, part[j]);
  }
  KVJAX_UNROLL for (int r = 0; r < R; ++r)
    KVJAX_UNROLL for (int j = 0; j < VECTORS; ++j) store(out + r * d + j * WIDTH, added[r][j]);
}

// sum_i weights[row * PIECE + i] v_i of all rows -> out[row * d + channel], of weights in float32 or, with a 0 behind an odd
// number of them, in bfloat16. Whole rows of values at a time as far as registers go; where that takes several turns, few slots,
// whose values the first-level cache holds until all rows and channels have had them.
template <class W, class T, class Slots>
void weighted(const W* weights, int64_t rows, int64_t d, const T* v, Slots slots, int64_t n, float* out) {
  const int64_t wide = d / (LONG * WIDTH) * LONG * WIDTH, narrow = d / (4 * WIDTH) * 4 * WIDTH;
  std::fill_n(out, rows * d, 0.0f);
  if constexpr (Slots::LISTED) soon(v, d, slots, 0, FEW, n);
  constexpr int64_t AT_A_TIME = Share<W, T>::SLOTS;
  const auto turns = [&](auto vectors, int64_t begin, int64_t upto, int64_t first, int64_t end) {
    constexpr int V = decltype(vectors)::value;
    for (int64_t c = begin; c < upto; c += V * WIDTH)
      by_rows<rows_beside(V)>(rows, [&](auto many, int64_t r) {
        // The first rows ask for what comes, where it is not what lies next in memory: the limit of the others is 0.
        const int64_t limit = r == 0 && (Slots::LISTED || V * WIDTH < d) ? n : 0;
        add<decltype(many)::value, V>(weights + r * PIECE, d, v + c, slots, first, end, limit, out + r * d + c);
      });
  };
  const bool once = (d == LONG * WIDTH && rows <= rows_beside(LONG)) || (d == 4 * WIDTH && rows <= rows_beside(4));
  for (int64_t first = 0, end; first < n; first = end) {
    end = std::min(first + (once ? PIECE : FEW), std::max(n / AT_A_TIME * AT_A_TIME, first + 1));
    turns(std::integral_constant<int, LONG>(), 0, wide, first, end);
    if constexpr (LONG > 4) turns(std::integral_constant<int, 4>(), wide, narrow, first, end);
    turns(std::integral_constant<int, 1>(), narrow, d, first, end);
  }
  for (int64_t r = 0; r < rows; ++r) Share<W, T>::order(out + r * d, narrow);
}

}  // namespace kvjax
