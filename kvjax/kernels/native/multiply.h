// How rows of query numbers are multiplied with rows of keys or weights: a register of Q at a time, summed in float32.
#pragma once

#include "vector.h"

namespace kvjax {

// Numbers of any kind converted to float32, product by product.
template <class Q>
struct Factor {
  static constexpr int CHANNELS = WIDTH;
  template <class T>
  static Vec read(const T* from) {
    return load(from);
  }
  static Vec times(const Vec& a, const Vec& b) { return a * b; }
  static Vec add(const Vec& sum, const Vec& a, const Vec& b) { return sum + a * b; }
};

#if defined(__AVX512BF16__)
// Both in bfloat16, as they lie in memory: two products a lane, exact in float32, where the processor has such an instruction.
constexpr bool PAIRS = true;
template <>
struct Factor<BFloat16> {
  static constexpr int CHANNELS = 2 * WIDTH;
  static __m512bh read(const BFloat16* from) { return unaligned<__m512bh>(from); }
  static Vec times(const __m512bh& a, const __m512bh& b) { return add(Vec{}, a, b); }
  static Vec add(const Vec& sum, const __m512bh& a, const __m512bh& b) {
    return bits_of<Vec>(_mm512_dpbf16_ps(bits_of<__m512>(sum), a, b));
  }
};
#else
constexpr bool PAIRS = false;
#endif

// Rows of d numbers, one after the other; their products are multiplied by `scale`.
template <class Q>
struct Rows {
  const Q* numbers;
  int64_t n, d;
  float scale;

  const Q* operator[](int64_t row) const { return numbers + row * d; }
  Rows from(int64_t row, int64_t many) const { return {numbers + row * d, many, d, scale}; }
};

}  // namespace kvjax
