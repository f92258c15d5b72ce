// Query rows times keys, and which slots of a pool the keys are.
#pragma once

#include <algorithm>
#include <type_traits>

#include "vector.h"

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

// Products of R query rows with n keys -> out[row * stride + i]. Key after key, as they lie in memory, and four keys' sums at once:
// several keys side by side would be fewer loads, and half the bandwidth.
template <int R, class T, class Slots>
void products(const float* q, int64_t d, const T* k, Slots slots, int64_t n, float* out, int64_t stride) {
  int64_t i = 0;
  if constexpr (Slots::LISTED) soon(k, d, slots, 0, FEW, n);
  for (; i + 4 <= n; i += 4) {
    if constexpr (Slots::LISTED) soon(k, d, slots, i + FEW, i + FEW + 4, n);
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

// Products of V vectors of query channels with WIDTH keys.
template <int V>
inline Vec tile(const float* q, const float* const (&keys)[WIDTH]) {
  Vec row[V], part[WIDTH];
  for (int v = 0; v < V; ++v) row[v] = load(q + v * WIDTH);
  for (int j = 0; j < WIDTH; ++j) {
    part[j] = row[0] * load(keys[j]);
    for (int v = 1; v < V; ++v) part[j] += row[v] * load(keys[j] + v * WIDTH);
  }
  return sums(part);
}

// The same for any number of rows of V vectors of channels, WIDTH keys at a time, which all rows but one have from the first-level
// cache and whose successors each row asks for a share of; gives back how many keys are done.
template <int V, class T, class Slots>
int64_t tiles(const float* q, int64_t rows, const T* k, Slots slots, int64_t n, float* out, int64_t stride) {
  constexpr int64_t D = V * WIDTH;
  const int64_t share = (WIDTH + rows - 1) / rows;
  alignas(64) float room[sizeof(T) < 4 ? WIDTH * D : 1];
  int64_t i = 0;
  if constexpr (Slots::LISTED) soon(k, D, slots, 0, FEW, n);
  for (; i + WIDTH <= n; i += WIDTH) {
    const float* keys[WIDTH];
    for (int j = 0; j < WIDTH; ++j) {
      const T* key = k + slots(i + j) * D;
      if constexpr (sizeof(T) < 4) {
        keys[j] = room + j * D;
        for (int v = 0; v < V; ++v) store(room + j * D + v * WIDTH, load(key + v * WIDTH));
      } else {
        keys[j] = key;
      }
    }
    for (int64_t r = 0, asked = 0; r < rows; ++r, asked += share) {
      soon(k, D, slots, i + FEW + asked, i + FEW + std::min<int64_t>(asked + share, WIDTH), n);
      store(out + r * stride + i, tile<V>(q + r * D, keys));
    }
  }
  return i;
}

// Products of any number of rows, by tiles as far as they go: one row waits for memory whatever it does.
template <class T, class Slots>
void all_products(const float* q, int64_t rows, int64_t d, const T* k, Slots slots, int64_t n, float* out, int64_t stride) {
  int64_t done = 0;
  if (rows > 1 && d == 4 * WIDTH) done = tiles<4>(q, rows, k, slots, n, out, stride);
  if (rows > 1 && d == 8 * WIDTH) done = tiles<8>(q, rows, k, slots, n, out, stride);
  by_rows(rows, [&](auto many, int64_t r) {
    products<decltype(many)::value>(q + r * d, d, k, slots.from(done), n - done, out + r * stride + done, stride);
  });
}

}  // namespace kvjax
