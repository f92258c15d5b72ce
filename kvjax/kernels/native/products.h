// Query rows times keys.
#pragma once

#include <type_traits>

#include "multiply.h"
#include "slots.h"

namespace kvjax {

// Registers of a key that are multiplied in one go, and query rows that are multiplied with them.
constexpr int BESIDE = 8, TOGETHER = 4;

// The products of V registers of a key, from channel c on, with R query rows: a vector to be summed of each row.
template <int R, int V, class Q, class T>
inline void part(const Rows<Q>& q, const T* key, int64_t c, Vec (&found)[R]) {
  using F = Factor<Q>;
  if constexpr (V > BESIDE) {
    Vec rest[R];
    part<R, V / 2>(q, key, c, found), part<R, V / 2>(q, key, c + V / 2 * F::CHANNELS, rest);
    KVJAX_UNROLL for (int r = 0; r < R; ++r) found[r] += rest[r];
  } else {
    decltype(F::read(key)) numbers[V];
    KVJAX_UNROLL for (int v = 0; v < V; ++v) numbers[v] = held(F::read(key + c + v * F::CHANNELS));
    KVJAX_UNROLL for (int r = 0; r < R; ++r) {
      found[r] = F::times(F::read(q[r] + c), numbers[0]);
      KVJAX_UNROLL for (int v = 1; v < V; ++v) found[r] = F::add(found[r], F::read(q[r] + c + v * F::CHANNELS), numbers[v]);
    }
  }
}

// The same of a whole key, of V registers, or of any number of them where V is 0.
template <int R, int V, class Q, class T>
inline void product(const Rows<Q>& q, const T* key, Vec (&found)[R]) {
  if constexpr (V > 0) return part<R, V>(q, key, 0, found);
  constexpr int64_t STEP = Factor<Q>::CHANNELS;
  KVJAX_UNROLL for (int r = 0; r < R; ++r) found[r] = Vec{};
  const auto more = [&](auto many, int64_t c) {
    Vec next[R];
    part<R, decltype(many)::value>(q, key, c, next);
    KVJAX_UNROLL for (int r = 0; r < R; ++r) found[r] += next[r];
  };
  int64_t c = 0;
  for (; c + 4 * STEP <= q.d; c += 4 * STEP) more(std::integral_constant<int, 4>(), c);
  for (; c < q.d; c += STEP) more(std::integral_constant<int, 1>(), c);
}

// Products of R query rows with the first WIDTH keys of some -> out[row * stride + i].
template <int R, int V, class Q, class T, class Slots>
inline void block(const Rows<Q>& q, const T* k, Slots slots, float* out, int64_t stride) {
  Quarter found[R][WIDTH / 4];
  KVJAX_UNROLL for (int i = 0; i < WIDTH; i += 4) {
    Vec four[4][R];
    KVJAX_UNROLL for (int j = 0; j < 4; ++j) product<R, V>(q, k + slots(i + j) * q.d, four[j]);
    KVJAX_UNROLL for (int r = 0; r < R; ++r) found[r][i / 4] = quarter(four[0][r], four[1][r], four[2][r], four[3][r]);
  }
  KVJAX_UNROLL for (int r = 0; r < R; ++r) store(out + r * stride, sums(found[r]) * q.scale);
}

// body(integral_constant<N>) for n = N, no more than MOST.
template <int MOST, class Body>
inline void exactly(int64_t n, const Body& body) {
  if constexpr (MOST > 1)
    if (n < MOST) return exactly<MOST - 1>(n, body);
  body(std::integral_constant<int, MOST>());
}

// body(integral_constant<R>, first row): all rows, up to MOST at a time and as evenly as that goes, the first of them most: while
// they are multiplied, memory is waited for.
template <int MOST, class Body>
inline void by_rows(int64_t rows, const Body& body) {
  const int64_t turns = (rows + MOST - 1) / MOST;
  const auto before = [&](int64_t turn) { return (rows * turn + turns - 1) / turns; };
  for (int64_t turn = 0; turn < turns; ++turn)
    exactly<MOST>(before(turn + 1) - before(turn), [&](auto many) { body(many, before(turn)); });
}

// `products` for keys of V registers. Listed keys are first copied: many readings then wait beside one another for memory.
template <int V, class Q, class T, class Slots>
void products_of(const Rows<Q>& q, const T* k, Slots slots, int64_t n, float* out, int64_t stride) {
  constexpr int64_t D = V * Factor<Q>::CHANNELS;
  constexpr bool COPIED = Slots::LISTED && V > 0;
  alignas(64) T room[COPIED ? WIDTH * D : 1];
  int64_t i = 0;
  const auto multiply = [&](const T* keys, auto few) {
    by_rows<TOGETHER>(q.n, [&](auto many, int64_t row) {
      constexpr int R = decltype(many)::value;
      block<R, V>(q.from(row, R), keys, few, out + row * stride + i, stride);
    });
  };
  if constexpr (Slots::LISTED) soon(k, q.d, slots, 0, FEW, n);
  for (; i + WIDTH <= n; i += WIDTH) {
    if constexpr (Slots::LISTED) soon(k, q.d, slots, i + FEW, i + FEW + WIDTH, n);
    if constexpr (COPIED) {
      for (int j = 0; j < WIDTH; ++j) std::memcpy(room + j * D, k + slots(i + j) * D, D * sizeof(T));
      multiply(room, Stretch{0});
    } else {
      multiply(k, slots.from(i));
    }
  }
  for (; i < n; ++i)
    by_rows<TOGETHER>(q.n, [&](auto many, int64_t row) {
      constexpr int R = decltype(many)::value;
      Vec found[R];
      product<R, V>(q.from(row, R), k + slots(i) * q.d, found);
      KVJAX_UNROLL for (int r = 0; r < R; ++r) out[(row + r) * stride + i] = sum(found[r]) * q.scale;
    });
}

// Products of query rows with n keys -> out[row * stride + i]. Keys are read in the order in which they lie, one after the other
// and each to its end: then the processor reads ahead by itself while it multiplies. Where keys are read side by side, or are asked
// for, the times of memory and of products add up.
template <class Q, class T, class Slots>
void products(const Rows<Q>& q, const T* k, Slots slots, int64_t n, float* out, int64_t stride) {
  switch (q.d / Factor<Q>::CHANNELS) {
    case 2: return products_of<2>(q, k, slots, n, out, stride);
    case 4: return products_of<4>(q, k, slots, n, out, stride);
    case 8: return products_of<8>(q, k, slots, n, out, stride);
    case 16: return products_of<16>(q, k, slots, n, out, stride);
    default: return products_of<0>(q, k, slots, n, out, stride);
  }
}

}  // namespace kvjax
