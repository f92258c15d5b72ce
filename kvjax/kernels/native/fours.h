// Codes of up to 8 bits times numbers, four products a lane: a number is an integer of three signed bytes, and sums are exact.
#pragma once

#include "codes.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define KVJAX_FOURS 1

namespace kvjax {

// Bytes of a number, lowest first; the largest number is WHOLE steps.
constexpr int LIMBS = 3;
constexpr float WHOLE = 127.0f * 65536;

// The step of numbers up to `largest`, and its inverse; numbers too small for one are nothing.
struct Fixed {
  float step, inverse;
  explicit Fixed(float largest) : step(largest > 1e-30f ? largest / WHOLE : 0), inverse(largest > 1e-30f ? WHOLE / largest : 0) {}
};

inline Vec magnitude(const Vec& x) { return bits_of<Vec>(bits_of<Ints>(x) & 0x7fffffff); }

// The largest of n magnitudes, in whole registers.
inline float largest(const float* from, int64_t n) {
  Vec most = {};
  for (int64_t i = 0; i < n; i += WIDTH) most = larger(most, magnitude(load(from + i)));
  return _mm512_reduce_max_ps(bits_of<__m512>(most));
}

// x = lowest + 256 middle + 65536 highest, in steps: adding half a byte to each carries, and the exclusive or takes it off again.
inline __m512i in_bytes(const Vec& x, float inverse) {
  const __m512i half = _mm512_set1_epi32(0x808080);
  return _mm512_xor_si512(_mm512_add_epi32(_mm512_cvtps_epi32(bits_of<__m512>(x * inverse)), half), half);
}

// Of each lane's four numbers, their lowest bytes as one lane, their middle and their highest ones.
struct Limbs {
  __m512i of[LIMBS];
};
inline Limbs limbs(const __m512i& a, const __m512i& b, const __m512i& c, const __m512i& d) {
  constexpr __mmask64 ODD = 0xaaaaaaaaaaaaaaaaull;
  constexpr __mmask32 HIGH = 0xaaaaaaaau;
  const __m512i ab = _mm512_mask_blend_epi8(ODD, a, _mm512_slli_epi32(b, 8));
  const __m512i cd = _mm512_mask_blend_epi8(ODD, c, _mm512_slli_epi32(d, 8));
  const __m512i middle_ab = _mm512_mask_blend_epi8(ODD, _mm512_srli_epi32(a, 8), b);
  const __m512i middle_cd = _mm512_mask_blend_epi8(ODD, _mm512_srli_epi32(c, 8), d);
  return {_mm512_mask_blend_epi16(HIGH, ab, _mm512_slli_epi32(cd, 16)),
          _mm512_mask_blend_epi16(HIGH, middle_ab, _mm512_slli_epi32(middle_cd, 16)),
          _mm512_mask_blend_epi16(HIGH, _mm512_srli_epi32(ab, 16), cd)};
}

// What three sums of bytes are together; of a plane's codes, the sums of the codes themselves.
template <int BITS>
inline Vec whole(const __m512i (&sums)[LIMBS], int plane) {
  const __m512i low = _mm512_add_epi32(_mm512_slli_epi32(sums[1], 8), sums[0]);
  const Vec all = __builtin_convertvector(bits_of<Ints>(sums[2]), Vec) * 65536.0f + __builtin_convertvector(bits_of<Ints>(low), Vec);
  return BITS == 8 ? all : all * (1.0f / float(1 << (BITS * plane)));
}

// Four registers of words so that lane 4 i + b of register u holds byte b of word 4 i + u of each of the four.
inline void interleave(__m512i (&x)[4]) {
  const __m512i ab = _mm512_unpacklo_epi8(x[0], x[1]), AB = _mm512_unpackhi_epi8(x[0], x[1]);
  const __m512i cd = _mm512_unpacklo_epi8(x[2], x[3]), CD = _mm512_unpackhi_epi8(x[2], x[3]);
  x[0] = _mm512_unpacklo_epi16(ab, cd), x[1] = _mm512_unpackhi_epi16(ab, cd);
  x[2] = _mm512_unpacklo_epi16(AB, CD), x[3] = _mm512_unpackhi_epi16(AB, CD);
}

// Lane u of a quarter of register b for lane b of a quarter of register u.
inline void turn(Vec (&x)[4]) {
  const Vec ab = KVJAX_WIDE(x[0], x[1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
  const Vec AB = KVJAX_WIDE(x[0], x[1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  const Vec cd = KVJAX_WIDE(x[2], x[3], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
  const Vec CD = KVJAX_WIDE(x[2], x[3], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  x[0] = KVJAX_WIDE(ab, cd, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  x[1] = KVJAX_WIDE(ab, cd, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  x[2] = KVJAX_WIDE(AB, CD, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
  x[3] = KVJAX_WIDE(AB, CD, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

// Code `plane` of every byte, times 2^(BITS * plane): as far as a byte goes, and so without a shift.
template <int BITS>
inline __m512i plane_of(const __m512i& words, int plane) {
  if constexpr (BITS == 8) return words;
  return _mm512_and_si512(words, _mm512_set1_epi8(char(((1 << BITS) - 1) << (BITS * plane))));
}

}  // namespace kvjax
#endif
