// Products of many rows with a panel of 64 vectors that lie side by side, a vector a lane: nothing is summed across a register.
#pragma once

#include <algorithm>

#include "vector.h"

namespace kvjax {

// Vectors of a panel. lanes[c * LANES + i] is number c of vector i.
constexpr int64_t LANES = 64;

// Registers of lanes and rows that are multiplied at once: as many sums as registers hold, beside the lanes and a factor.
constexpr int REGISTERS = WIDTH == 16 ? 4 : 2;
constexpr int SIDE = 6;

// Where row r has its number c: at from + r * row + c * number.
struct Numbers {
  const float* from;
  int64_t row, number;
};

// out[r][lane] (+)= sum_c lanes[c][lane] * rows[r][c] for MANY rows, `stride` apart in `out`, and one group of lanes. A function of
// its own: inlined into a larger one, GCC keeps the sums in memory.
template <int MANY, bool ADD>
[[gnu::noinline]] void products_of_lanes(const float* lanes, const Numbers& rows, int64_t d, float* out, int64_t stride) {
  Vec sums[MANY][REGISTERS];
  KVJAX_UNROLL for (int r = 0; r < MANY; ++r)
    KVJAX_UNROLL for (int i = 0; i < REGISTERS; ++i) sums[r][i] = Vec{};
  const float* number = rows.from;
  for (int64_t c = 0; c < d; ++c, lanes += LANES, number += rows.number) {
    Vec x[REGISTERS];
    KVJAX_UNROLL for (int i = 0; i < REGISTERS; ++i) x[i] = load(lanes + i * WIDTH);
    KVJAX_UNROLL for (int r = 0; r < MANY; ++r)
      KVJAX_UNROLL for (int i = 0; i < REGISTERS; ++i) add_product(sums[r][i], number + r * rows.row, x[i]);
  }
  KVJAX_UNROLL for (int r = 0; r < MANY; ++r)
    KVJAX_UNROLL for (int i = 0; i < REGISTERS; ++i) {
      float* const to = out + r * stride + i * WIDTH;
      store(to, ADD ? load(to) + sums[r][i] : sums[r][i]);
    }
}

template <int MANY, bool ADD>
inline void products_of(const float* lanes, const Numbers& rows, int64_t n, int64_t d, float* out, int64_t stride) {
  if constexpr (MANY > 0) {
    if (n < MANY) return products_of<MANY - 1, ADD>(lanes, rows, n, d, out, stride);
    for (int64_t i = 0; i < LANES; i += REGISTERS * WIDTH) products_of_lanes<MANY, ADD>(lanes + i, rows, d, out + i, stride);
  }
}

// out[r][lane] = sum_c lanes[c][lane] * rows[r][c] over c < d, of n rows; with ADD on top of what is there, which keeps
// long sums as exact as short ones. A number's sum is the same whatever stands beside it. Rows of `out` are `stride` apart.
template <bool ADD>
inline void products_with_panel(const float* lanes, Numbers rows, int64_t n, int64_t d, float* out, int64_t stride = LANES) {
  for (; n > 0; n -= SIDE, out += SIDE * stride, rows.from += SIDE * rows.row)
    products_of<SIDE, ADD>(lanes, rows, std::min<int64_t>(n, SIDE), d, out, stride);
}

// Up to LANES rows of d numbers as a panel, times `scale`; lanes beyond `many` are zero.
template <class T>
void as_panel(const T* rows, int64_t many, int64_t d, float scale, float* lanes) {
  std::fill_n(lanes, d * LANES, 0.0f);
  float row[512];
  for (int64_t i = 0; i < many; ++i)
    for (int64_t first = 0; first < d; first += 512) {
      const int64_t width = std::min<int64_t>(512, d - first);
      numbers(rows + i * d + first, width, row);
      for (int64_t c = 0; c < width; ++c) lanes[(first + c) * LANES + i] = scale * row[c];
    }
}

}  // namespace kvjax
