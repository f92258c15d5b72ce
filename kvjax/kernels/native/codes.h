// Codes of 2, 4 or 8 bits in 32-bit words, lowest bits first, as registers of float32; and the steps and minima of their groups.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "operands.h"

namespace kvjax {

// Codes of a word that are made numbers in one go.
constexpr int CODES = 4;

// Code K of four in the lowest 4 * BITS bits of each word, times 2^(BITS * K) where that spares a shift.
template <int BITS, int K>
inline Vec code(const Words& words) {
  constexpr uint32_t MASK = (1u << BITS) - 1;
  if constexpr (BITS * (K + 1) == 32) return __builtin_convertvector(bits_of<Ints>(words >> (BITS * K)), Vec);
  else return __builtin_convertvector(bits_of<Ints>(words & (MASK << (BITS * K))), Vec);
}
// What undoes that power of two.
template <int BITS>
constexpr float undone(int k) {
  return BITS * (k + 1) == 32 ? 1.0f : 1.0f / float(1u << (BITS * k));
}

// body(integral_constant<0>) to body(integral_constant<3>).
template <class Body>
inline void each_code(const Body& body) {
  body(std::integral_constant<int, 0>()), body(std::integral_constant<int, 1>());
  body(std::integral_constant<int, 2>()), body(std::integral_constant<int, 3>());
}

// The exponent of a power of two: shifts, where divisions would take as long as the products they stand between.
inline int exponent(int64_t power) { return __builtin_ctzll(power); }

// Which of the numbers that `spread` reads each lane gets: each number 2^times times.
inline Ints spreading(int times) {
  Ints index;
  for (int lane = 0; lane < WIDTH; ++lane) index[lane] = int32_t(lane >> times);
  return index;
}
// Numbers by lane; a whole register is read.
inline Vec spread(const float* from, const Ints& index) {
#if defined(__AVX512F__)
  return bits_of<Vec>(_mm512_permutexvar_ps(bits_of<__m512i>(index), _mm512_loadu_ps(from)));
#elif defined(__AVX2__)
  return bits_of<Vec>(_mm256_permutevar8x32_ps(_mm256_loadu_ps(from), bits_of<__m256i>(index)));
#else
  Vec found;
  for (int lane = 0; lane < WIDTH; ++lane) found[lane] = from[index[lane]];
  return found;
#endif
}

// The sums of every n-th lane, in the first n: a register of several slots.
inline Vec overlaid(Vec x, int64_t n) {
  for (int64_t half = WIDTH / 2; half >= n; half /= 2) {
    float lanes[2 * WIDTH] = {};
    store(lanes, x);
    x += load(lanes + half);
  }
  return x;
}

// The rows of a codec. By slot: words [slots, d / each], steps and minima [slots, d / group]. By page of `page` slots: words
// [pages, page / each, d], steps and minima [pages, d].
struct Codes {
  const uint32_t* words;
  const ffi::AnyBuffer *scale, *low;
  int64_t bits, each, d, page, groups;

  Codes(const ffi::AnyBuffer& packed, const ffi::AnyBuffer& scale, const ffi::AnyBuffer& low, int64_t bits, int64_t d, int64_t page)
      : words(data<uint32_t>(packed)), scale(&scale), low(&low), bits(bits), each(32 / bits), d(d), page(page),
        groups(scale.dimensions()[1]) {}

  int64_t words_a_row() const { return page > 1 ? (page + each - 1) / each * d : d / each; }
  int64_t slots() const { return scale->dimensions()[0] * page; }

  // What is read of slots first .. first + n - 1.
  Ahead ahead(int64_t first, int64_t n) const {
    Ahead found;
    const int64_t row = first / page, many = (n + page - 1) / page;
    found.add(words + row * words_a_row(), many * words_a_row() * sizeof(uint32_t));
    for (const ffi::AnyBuffer* each : {scale, low}) {
      const int64_t bytes = groups * ffi::ByteWidth(each->element_type());
      found.add(static_cast<const char*>(each->untyped_data()) + row * bytes, many * bytes);
    }
    return found;
  }
};

// n steps or minima from number `first` on as float32, and zeros behind them up to `room`.
inline void steps(const ffi::AnyBuffer& from, int64_t first, int64_t n, int64_t room, float* to) {
  by_type(from, [&](auto type) { numbers(data<decltype(type)>(from) + first, n, to); });
  std::fill(to + n, to + room, 0.0f);
}

// body(integral_constant<BITS>).
template <class Body>
void by_bits(int64_t bits, const Body& body) {
  if (bits == 2) body(std::integral_constant<int, 2>());
  if (bits == 4) body(std::integral_constant<int, 4>());
  if (bits == 8) body(std::integral_constant<int, 8>());
}

}  // namespace kvjax
