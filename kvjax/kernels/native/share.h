// How values are multiplied with weights: registers of a slot's channels, summed in float32.
#pragma once

#include <cstring>

#include "multiply.h"

namespace kvjax {

// Values of any kind converted to float32, slot by slot. `read` leaves sums in an order of channels that `order` puts right.
template <class W, class T>
struct Share {
  static constexpr int SLOTS = 1;
  using Register = Vec;
  template <int VECTORS>
  static void read(const T* from, const T*, Vec (&numbers)[VECTORS]) {
    KVJAX_UNROLL for (int j = 0; j < VECTORS; ++j) numbers[j] = held(load(from + j * WIDTH));
  }
  static void add(Vec& sum, const W* weight, const Vec& numbers) { add_product(sum, weight, numbers); }
  static void order(float*, int64_t) {}
};

// Of two vectors of bfloat16 one gets the channels of even places and the other those between, which takes half as long as
// widening them.
template <class W>
struct Share<W, BFloat16> : Share<W, float> {
  template <int VECTORS>
  static void read(const BFloat16* from, const BFloat16*, Vec (&numbers)[VECTORS]) {
    if constexpr (VECTORS == 1) numbers[0] = load(from);
    if constexpr (VECTORS > 1)
      KVJAX_UNROLL for (int j = 0; j < VECTORS; j += 2) {
        const Words both = held(unaligned<Words>(from + j * WIDTH));
        numbers[j] = bits_of<Vec>(both << 16), numbers[j + 1] = bits_of<Vec>(both & 0xffff0000u);
      }
  }
  static void order(float* numbers, int64_t n) {
    for (int64_t i = 0; i < n; i += 2 * WIDTH) {
      float both[2 * WIDTH];
      std::memcpy(both, numbers + i, sizeof(both));
      for (int64_t j = 0; j < WIDTH; ++j) numbers[i + 2 * j] = both[j], numbers[i + 2 * j + 1] = both[WIDTH + j];
    }
  }
};

#if defined(__AVX512BF16__)
// Weights in bfloat16 too: the values of two slots at a time, two products a lane.
template <>
struct Share<BFloat16, BFloat16> {
  struct Two {
    BFloat16 weights[2];
  };
  static constexpr int SLOTS = 2;
  using Register = __m512bh;
  template <int VECTORS>
  static void read(const BFloat16* one, const BFloat16* other, __m512bh (&numbers)[VECTORS]) {
    if constexpr (VECTORS == 1) numbers[0] = bits_of<__m512bh>(widened(&one->bits) | widened(&other->bits) << 16);
    if constexpr (VECTORS > 1)
      KVJAX_UNROLL for (int j = 0; j < VECTORS; j += 2) {
        const __m512i a = held(unaligned<__m512i>(one + j * WIDTH)), b = held(unaligned<__m512i>(other + j * WIDTH));
        numbers[j] = held(bits_of<__m512bh>(_mm512_unpacklo_epi16(a, b)));
        numbers[j + 1] = held(bits_of<__m512bh>(_mm512_unpackhi_epi16(a, b)));
      }
  }
  // Two weights from memory by the product itself, as in `add_product`.
  static void add(Vec& sum, const BFloat16* weights, const __m512bh& numbers) {
    asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(numbers), "m"(*reinterpret_cast<const Two*>(weights)));
  }
  // Of 32 channels the first register has the first four of every eight.
  static void order(float* numbers, int64_t n) {
    for (int64_t i = 0; i < n; i += 32) {
      float both[32];
      std::memcpy(both, numbers + i, sizeof(both));
      for (int64_t j = 0; j < 32; ++j) numbers[i + j] = both[j % 8 / 4 * 16 + j / 8 * 4 + j % 4];
    }
  }
};

// n weights rounded, in whole vectors.
inline void rounded(const float* weights, int64_t n, BFloat16* to) {
  for (int64_t i = 0; i < n; i += WIDTH) store(to + i, _mm512_cvtneps_pbh(bits_of<__m512>(load(weights + i))));
}
#endif

}  // namespace kvjax
