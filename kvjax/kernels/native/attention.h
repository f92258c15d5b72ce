// A query group against one stretch of slots: scores, softmax and weighted values. Everything between XLA and memory bandwidth.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "vector.h"

namespace kvjax {

// Slots attended to as one piece: its scores stay in the first-level cache. A region's pieces begin at its first slot and are
// put together in order, so that its sums do not depend on the threads or on other regions.
constexpr int64_t PIECE = 256;
// Slots, and vectors of a slot's channels, whose values are added up in one go.
constexpr int64_t FEW = 32;
constexpr int LONG = WIDTH == 16 ? 8 : 4;
constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// Which slots a list is: a stretch of the pool, or named one by one.
struct Stretch {
  int64_t first;
  int64_t operator()(int64_t i) const { return first + i; }
};
struct Listed {
  const int32_t* slots;
  int64_t limit;
  int64_t operator()(int64_t i) const { return std::clamp<int64_t>(slots[i], 0, limit - 1); }
};

// Positions of slots and queries; query row i is at now[i % t]. Without `pos` everything is seen.
struct Seen {
  const void* pos;
  bool wide;
  const int32_t* now;
  int64_t t, window;

  int64_t at(int64_t slot) const {
    return wide ? static_cast<const int32_t*>(pos)[slot] : static_cast<const uint16_t*>(pos)[slot];
  }
  bool operator()(int64_t slot, int64_t row) const {
    const int64_t query = now[row % t], key = at(slot);
    return key <= query && (window == 0 || key > query - window);
  }
};

// The processor looks ahead along a stretch by itself; where listed slots [begin, end) of n lie it has to be told.
template <class T>
inline void soon(const T*, int64_t, const Stretch&, int64_t, int64_t, int64_t) {}
template <class T>
inline void soon(const T* pool, int64_t d, const Listed& slots, int64_t begin, int64_t end, int64_t n) {
  for (int64_t i = begin; i < std::min(end, n); ++i)
    for (int64_t c = 0; c < d; c += 64 / int64_t(sizeof(T))) __builtin_prefetch(pool + slots(i) * d + c);
}

// A key's products with R query rows, channel by channel: vectors to be summed.
template <int R, class T>
inline void product(const float* q, int64_t d, const T* key, Vec (&found)[R]) {
  Vec part[R] = {};
  for (int64_t c = 0; c < d; c += WIDTH) {
    const Vec numbers = held(load(key + c));
    for (int r = 0; r < R; ++r) part[r] += load(q + r * d + c) * numbers;
  }
  for (int r = 0; r < R; ++r) found[r] = part[r];
}

// Products of R query rows with n keys -> out[row * stride + i]. Key after key, as they lie in memory, and four keys' sums at once:
// several keys side by side would be fewer loads, and half the bandwidth.
template <int R, class T, class Slots>
void products(const float* q, int64_t d, const T* k, Slots slots, int64_t n, float* out, int64_t stride) {
  int64_t i = 0;
  soon(k, d, slots, 0, FEW, n);
  for (; i + 4 <= n; i += 4) {
    soon(k, d, slots, i + FEW, i + FEW + 4, n);
    Vec a[R], b[R], c[R], e[R];
    product<R>(q, d, k + slots(i) * d, a);
    product<R>(q, d, k + slots(i + 1) * d, b);
    product<R>(q, d, k + slots(i + 2) * d, c);
    product<R>(q, d, k + slots(i + 3) * d, e);
    for (int r = 0; r < R; ++r) {
      const Quad found = sums(a[r], b[r], c[r], e[r]);
      std::memcpy(out + r * stride + i, &found, sizeof(found));
    }
  }
  for (; i < n; ++i) {
    Vec a[R];
    product<R>(q, d, k + slots(i) * d, a);
    for (int r = 0; r < R; ++r) out[r * stride + i] = sum(a[r]);
  }
}

// out[row * d + channel] += sum_i weights[row * PIECE + i] v_i over slots [first, end) for R rows and VECTORS vectors of channels.
template <int R, int VECTORS, class T, class Slots>
void add(const float* weights, int64_t d, const T* v, Slots slots, int64_t first, int64_t end, float* out) {
  Vec added[R][VECTORS];
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < VECTORS; ++j) added[r][j] = load(out + r * d + j * WIDTH);
  for (int64_t i = first; i < end; ++i) {
    const T* value = v + slots(i) * d;
    Vec part[VECTORS];
    for (int j = 0; j < VECTORS; ++j) part[j] = held(load(value + j * WIDTH));
    for (int r = 0; r < R; ++r) {
      const Vec weight = all(weights[r * PIECE + i]);
      for (int j = 0; j < VECTORS; ++j) added[r][j] += weight * part[j];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int j = 0; j < VECTORS; ++j) store(out + r * d + j * WIDTH, added[r][j]);
}

// sum_i weights[row * PIECE + i] v_i of R rows -> out[row * d + channel]. Whole rows of values at a time as far as registers go,
// and few slots, whose values the first-level cache holds until all rows and channels have had them.
template <int R, class T, class Slots>
void weighted(const float* weights, int64_t d, const T* v, Slots slots, int64_t n, float* out) {
  constexpr int PAIR = R < 2 ? R : 2;
  std::fill_n(out, R * d, 0.0f);
  soon(v, d, slots, 0, FEW, n);
  for (int64_t first = 0; first < n; first += FEW) {
    const int64_t end = std::min(first + FEW, n);
    soon(v, d, slots, end, end + FEW, n);
    int64_t c = 0;
    for (; c + LONG * WIDTH <= d; c += LONG * WIDTH) {
      int r = 0;
      for (; r + PAIR <= R; r += PAIR) add<PAIR, LONG>(weights + r * PIECE, d, v + c, slots, first, end, out + r * d + c);
      if (r < R) add<1, LONG>(weights + r * PIECE, d, v + c, slots, first, end, out + r * d + c);
    }
    for (; c + 4 * WIDTH <= d; c += 4 * WIDTH) add<R, 4>(weights, d, v + c, slots, first, end, out + c);
    for (; c < d; c += WIDTH) add<R, 1>(weights, d, v + c, slots, first, end, out + c);
  }
}

template <class Slots>
void hide(const Seen& seen, Slots slots, int64_t n, int64_t first_row, int64_t rows, float* scores, int64_t stride) {
  if (!seen.pos) return;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < n; ++i)
      if (!seen(slots(i), first_row + r)) scores[r * stride + i] = NOTHING;
}

// scores -> exp(scores - their maximum), with the maximum and the sum. Room for whole vectors behind the n scores.
inline void softmax(float* scores, int64_t n, float* high, float* total) {
  for (int64_t i = n; i % WIDTH; ++i) scores[i] = NOTHING;
  Vec most = all(LOW), added = {};
  for (int64_t i = 0; i < n; i += WIDTH) most = larger(most, load(scores + i));
  float top = LOW;
  for (int i = 0; i < WIDTH; ++i) top = std::max(top, most[i]);
  for (int64_t i = 0; i < n; i += WIDTH) {
    const Vec weights = exponential(load(scores + i) - top);
    store(scores + i, weights);
    added += weights;
  }
  *high = top, *total = sum(added);
}

// Softmax of a piece by itself for R rows: greatest score, sum of weights, weighted values.
template <int R, class T, class Slots>
void attend(const float* q, int64_t d, const T* k, const T* v, Slots slots, int64_t n, const Seen& seen, int64_t row,
            float* high, float* total, float* out) {
  alignas(64) float scores[R * PIECE];
  products<R>(q, d, k, slots, n, scores, PIECE);
  hide(seen, slots, n, row, R, scores, PIECE);
  for (int r = 0; r < R; ++r) softmax(scores + r * PIECE, n, high + r, total + r);
  weighted<R>(scores, d, v, slots, n, out);
}

// body(integral_constant<R>, first row): all rows, four at a time.
template <class Body>
void by_rows(int64_t rows, const Body& body) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) body(std::integral_constant<int, 4>(), row);
  switch (rows - row) {
    case 3: body(std::integral_constant<int, 3>(), row); break;
    case 2: body(std::integral_constant<int, 2>(), row); break;
    case 1: body(std::integral_constant<int, 1>(), row);
  }
}

}  // namespace kvjax
