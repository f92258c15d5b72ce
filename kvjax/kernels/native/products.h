// Query rows times keys, a few keys side by side.
#pragma once

#include <type_traits>

#include "multiply.h"
#include "slots.h"

namespace kvjax {

// Keys multiplied side by side: sums of independent channels fill the time that one takes, as far as there are registers.
constexpr int BESIDE = WIDTH == 16 ? 4 : 2;
// Bytes after which keys that lie one after the other are asked for.
constexpr int64_t FAR = 4096;

// The products of J keys with R query rows, channel by channel: vectors to be summed, from found[r][at] on.
template <int R, int J, class Q, class T>
inline void product(const Rows<Q>& q, const T* const (&keys)[J], Vec (&found)[R][4], int at) {
  Vec part[R][J] = {};
  for (int64_t c = 0; c < q.d; c += Factor<Q>::CHANNELS) {
    decltype(Factor<Q>::read(keys[0])) numbers[J];
    KVJAX_UNROLL for (int j = 0; j < J; ++j) numbers[j] = held(Factor<Q>::read(keys[j] + c));
    KVJAX_UNROLL for (int r = 0; r < R; ++r) {
      const auto row = Factor<Q>::read(q[r] + c);
      KVJAX_UNROLL for (int j = 0; j < J; ++j) part[r][j] = Factor<Q>::add(part[r][j], row, numbers[j]);
    }
  }
  KVJAX_UNROLL for (int r = 0; r < R; ++r)
    KVJAX_UNROLL for (int j = 0; j < J; ++j) found[r][at + j] = part[r][j];
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

// Products of R query rows with n keys -> out[row * stride + i], four keys' sums at once. One row of float32 waits for memory
// whatever it does, and only loses by asking.
template <int R, class Q, class T, class Slots>
void products(const Rows<Q>& q, const T* k, Slots slots, int64_t n, float* out, int64_t stride) {
  constexpr bool ASKS = Slots::LISTED || R > 1 || sizeof(T) < 4;
  const int64_t d = q.d, far = Slots::LISTED ? FEW : std::max<int64_t>(FAR / (d * sizeof(T)) / 4 * 4, 4);
  int64_t i = 0;
  if constexpr (Slots::LISTED) soon(k, d, slots, 0, FEW, n);
  for (; i + 4 <= n; i += 4) {
    if constexpr (ASKS) soon(k, d, slots, i + far, i + far + 4, n);
    Vec found[R][4];
    KVJAX_UNROLL for (int j = 0; j < 4; j += BESIDE) {
      const T* keys[BESIDE];
      KVJAX_UNROLL for (int l = 0; l < BESIDE; ++l) keys[l] = k + slots(i + j + l) * d;
      product<R, BESIDE>(q, keys, found, j);
    }
    KVJAX_UNROLL for (int r = 0; r < R; ++r) {
      const Quad summed = sums(found[r][0], found[r][1], found[r][2], found[r][3]) * q.scale;
      std::memcpy(out + r * stride + i, &summed, sizeof(summed));
    }
  }
  for (; i < n; ++i) {
    Vec found[R][4];
    product<R, 1>(q, {k + slots(i) * d}, found, 0);
    KVJAX_UNROLL for (int r = 0; r < R; ++r) out[r * stride + i] = sum(found[r][0]) * q.scale;
  }
}

}  // namespace kvjax
