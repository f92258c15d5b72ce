// A query group against one stretch of slots: scores and their softmax. Everything between XLA and memory bandwidth.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "instances.h"

namespace kvjax {

constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// Positions of slots and queries; query row i is at now[i % t]. Without `bias` nothing is added.
struct Seen {
  // Everything is seen; or positions are those of `pos`, or counted from the slot `origin` on.
  enum { ALL, STORED, IN_ORDER } kind;
  const void* pos;
  bool wide;
  const int32_t* now;
  int64_t t, window;
  const float* bias;
  int64_t origin;

  // The positions that a query row sees: after the first, up to the second.
  std::pair<int64_t, int64_t> of(int64_t row) const {
    const int64_t query = now[row % t];
    return {window ? query - window : std::numeric_limits<int64_t>::min(), query};
  }
};

// Scores of slots that a row does not see -> NOTHING. Most rows see every slot of most pieces.
template <class Position>
void hide(const Position* pos, const Seen& seen, int64_t n, int64_t first_row, int64_t rows, float* scores, int64_t stride) {
  const auto [least, most] = std::minmax_element(pos, pos + n);
  for (int64_t r = 0; r < rows; ++r) {
    const auto [after, upto] = seen.of(first_row + r);
    if (n == 0 || (*least > after && *most <= upto)) continue;
    const int32_t low = std::max<int64_t>(after, -1), high = upto;
    float* mine = scores + r * stride;
    for (int64_t i = 0; i < n; ++i) mine[i] = (pos[i] > low) & (pos[i] <= high) ? mine[i] : NOTHING;
  }
}

inline void hide_in_order(int64_t first, const Seen& seen, int64_t n, int64_t first_row, int64_t rows, float* scores,
                          int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const auto [after, upto] = seen.of(first_row + r);
    float* mine = scores + r * stride;
    std::fill(mine, mine + std::clamp<int64_t>(std::max<int64_t>(after, -1) - first + 1, 0, n), NOTHING);
    std::fill(mine + std::clamp<int64_t>(upto - first + 1, 0, n), mine + n, NOTHING);
  }
}

inline void hide(const Seen& seen, Stretch slots, int64_t n, int64_t first_row, int64_t rows, float* scores, int64_t stride) {
  if (seen.kind == Seen::ALL) return;
  if (seen.kind == Seen::IN_ORDER)
    return hide_in_order(slots.first - seen.origin, seen, n, first_row, rows, scores, stride);
  if (seen.wide) return hide(static_cast<const int32_t*>(seen.pos) + slots.first, seen, n, first_row, rows, scores, stride);
  hide(static_cast<const uint16_t*>(seen.pos) + slots.first, seen, n, first_row, rows, scores, stride);
}

// Each slot's bias added to its scores, and what rows do not see hidden: a list's slots are all seen.
template <class Slots>
void adjust(const Seen& seen, Slots slots, int64_t n, int64_t first_row, int64_t rows, float* scores, int64_t stride) {
  if (seen.bias)
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < n; ++i) scores[r * stride + i] += seen.bias[slots(i)];
  if constexpr (!Slots::LISTED) hide(seen, slots, n, first_row, rows, scores, stride);
}

// The maximum of whole vectors of scores, LOW where there is none above it.
inline float greatest(const float* scores, int64_t n) {
  Vec most = all(LOW);
  for (int64_t i = 0; i + WIDTH <= n; i += WIDTH) most = larger(most, load(scores + i));
  float high = LOW;
  for (int i = 0; i < WIDTH; ++i) high = std::max(high, most[i]);
  return high;
}

// scores -> exp(scores - high), and their sum; whole vectors.
inline float exponentials(float* scores, int64_t n, float high) {
  Vec added = {};
  for (int64_t i = 0; i < n; i += WIDTH) {
    const Vec weights = exponential(load(scores + i) - high);
    store(scores + i, weights);
    added += weights;
  }
  return sum(added);
}

// scores -> exp(scores - their maximum), with the maximum and the sum. Room for whole vectors behind the n scores.
inline void softmax(float* scores, int64_t n, float* high, float* total) {
  for (; n % WIDTH; ++n) scores[n] = NOTHING;
  *high = greatest(scores, n), *total = exponentials(scores, n, *high);
}

// Query rows that share a reading of a piece: their scores fit beside a few keys in the first-level cache.
constexpr int64_t ROWS = 8;

// Weights of a piece by itself for up to ROWS rows: exp(score - greatest score) -> weights[row * PIECE + i], and their sum.
template <class Q, class T, class Slots>
void weigh(const Rows<Q>& q, const T* k, Slots slots, int64_t n, const Seen& seen, int64_t row, float* weights, float* high,
           float* total) {
  products(q, k, slots, n, weights, PIECE);
  adjust(seen, slots, n, row, q.n, weights, PIECE);
  for (int64_t r = 0; r < q.n; ++r) softmax(weights + r * PIECE, n, high + r, total + r);
}

// body(rows, first row): all rows, ROWS at a time.
template <class Body>
void by_readings(int64_t rows, const Body& body) {
  for (int64_t row = 0; row < rows; row += ROWS) body(std::min(ROWS, rows - row), row);
}

}  // namespace kvjax
