// Query rows times keys, as many keys together as a register has numbers.
#pragma once

#include "products.h"

namespace kvjax {

// Products of a query row of V registers with WIDTH keys, one after the other.
template <int V, class Q>
inline Vec tile(const Q* q, const Q* keys) {
  constexpr int CHANNELS = Factor<Q>::CHANNELS;
  decltype(Factor<Q>::read(q)) row[V];
  Vec part[WIDTH];
  KVJAX_UNROLL for (int v = 0; v < V; ++v) row[v] = Factor<Q>::read(q + v * CHANNELS);
  KVJAX_UNROLL for (int j = 0; j < WIDTH; ++j, keys += V * CHANNELS) {
    part[j] = Factor<Q>::times(row[0], Factor<Q>::read(keys));
    KVJAX_UNROLL for (int v = 1; v < V; ++v) part[j] = Factor<Q>::add(part[j], row[v], Factor<Q>::read(keys + v * CHANNELS));
  }
  return sums(part);
}

// The same for any number of rows, WIDTH keys at a time, which all rows but one have from the first-level cache and whose
// successors each row asks for a share of; gives back how many keys are done.
template <int V, class Q, class T, class Slots>
int64_t tiles(const Rows<Q>& q, const T* k, Slots slots, int64_t n, float* out, int64_t stride) {
  constexpr int64_t CHANNELS = Factor<Q>::CHANNELS, D = V * CHANNELS;
  constexpr bool AS_THEY_LIE = std::is_same_v<Q, T> && !Slots::LISTED;
  const int64_t share = (WIDTH + q.n - 1) / q.n;
  alignas(64) Q room[AS_THEY_LIE ? 1 : WIDTH * D];
  int64_t i = 0;
  if constexpr (Slots::LISTED) soon(k, D, slots, 0, FEW, n);
  for (; i + WIDTH <= n; i += WIDTH) {
    const Q* keys = room;
    if constexpr (AS_THEY_LIE) keys = k + slots(i) * D;
    else
      for (int j = 0; j < WIDTH; ++j) {
        const T* key = k + slots(i + j) * D;
        KVJAX_UNROLL for (int v = 0; v < V; ++v) store(room + j * D + v * CHANNELS, Factor<Q>::read(key + v * CHANNELS));
      }
    for (int64_t r = 0, asked = 0; r < q.n; ++r, asked += share) {
      soon(k, D, slots, i + FEW + asked, i + FEW + std::min<int64_t>(asked + share, WIDTH), n);
      store(out + r * stride + i, tile<V>(q[r], keys) * q.scale);
    }
  }
  return i;
}

// Products of any number of rows, by tiles as far as they go. One row of float32 waits for memory whatever it does.
template <class Q, class T, class Slots>
void all_products(const Rows<Q>& q, const T* k, Slots slots, int64_t n, float* out, int64_t stride) {
  constexpr int64_t CHANNELS = Factor<Q>::CHANNELS;
  int64_t done = 0;
  if (q.n > 1 || CHANNELS > WIDTH) {
    if (q.d == 2 * CHANNELS && CHANNELS > WIDTH) done = tiles<2>(q, k, slots, n, out, stride);
    if (q.d == 4 * CHANNELS) done = tiles<4>(q, k, slots, n, out, stride);
    if (q.d == 8 * CHANNELS) done = tiles<8>(q, k, slots, n, out, stride);
  }
  by_rows(q.n, [&](auto many, int64_t r) {
    constexpr int R = decltype(many)::value;
    products<R>(q.from(r, R), k, slots.from(done), n - done, out + r * stride + done, stride);
  });
}

}  // namespace kvjax
