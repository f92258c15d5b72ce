// Weighted sums of values by slot, four slots a lane: weights times steps are whole numbers of a step of the piece's own.
#pragma once

#include "fours.h"
#include "weighted.h"

#if defined(KVJAX_FOURS)
namespace kvjax {

// A lane's sums over a piece, the middle bytes' times 256, are whole numbers of 32 bits.
static_assert(255LL * 128 * 257 * PIECE <= INT32_MAX);

// Rows of whole registers in four parts, whose rows are read together; a row is a slot, or as many as fill a register.
struct FourParts {
  const uint32_t *words, *last;
  int64_t size, whole, part;

  // n words; what is not a whole row is in `last`.
  FourParts(const uint32_t* words, const uint32_t* last, int64_t n, int64_t size)
      : words(words), last(last), size(size), whole(n / size), part(((n + size - 1) / size + 3) / 4) {}

  // Row i of part s. Rows that are not there have no weight: any will do.
  const uint32_t* row(int s, int64_t i) const { return s * part + i < whole ? words + (s * part + i) * size : last; }
};

// Numbers in four parts of n -> limbs [limb, n], up to whole registers; returns their step.
inline float limbs_of_parts(const float* numbers, int64_t n, int32_t* to, int64_t stride) {
  const Fixed fixed(largest(numbers, 4 * n));
  for (int64_t i = 0; i < n; i += WIDTH) {
    const auto at = [&](int s) { return in_bytes(load(numbers + s * n + i), fixed.inverse); };
    const Limbs found = limbs(at(0), at(1), at(2), at(3));
    KVJAX_UNROLL for (int l = 0; l < LIMBS; ++l) store(to + l * stride + i, found.of[l]);
  }
  return fixed.step;
}

// Which limb each lane of register u gets: those of word 4 i + u, for the quarter's four bytes.
inline Ints limbs_by_lane(int u, int times) {
  Ints index;
  for (int lane = 0; lane < WIDTH; ++lane) index[lane] = (lane / 4 * 4 + u) >> times;
  return index;
}

// Limbs of weights times steps [LIMBS, stride], their step, and how lanes share them: 2^times words have the same.
struct Factors {
  const int32_t* limbs;
  int64_t stride;
  float step;
  int times;

  __m512i of(int l, int64_t at, const Ints& index) const {
    return bits_of<__m512i>(spread(reinterpret_cast<const float*>(limbs + l * stride + at), index));
  }
};

// Sums of PLANES planes from plane `first` on of one register of every row. SHARED neighbouring words have the same limbs.
template <int BITS, int PLANES, int SHARED>
inline void plane_sums(const FourParts& rows, int64_t at, int first, const Factors& w, Ahead& ahead,
                       __m512i (&added)[PLANES][4][LIMBS]) {
  constexpr int64_t MANY = 2;  // a call for each row keeps too little in registers
  Ints index[4];
  KVJAX_UNROLL for (int u = 0; u < 4; ++u) index[u] = limbs_by_lane(u, w.times);
  ahead.in((rows.part + MANY - 1) / MANY);
  for (int64_t begin = 0; begin < rows.part; begin += MANY) {
    ahead.next();
    for (int64_t i = begin; i < std::min(begin + MANY, rows.part); ++i) {
      __m512i x[4], limb[LIMBS];
      KVJAX_UNROLL for (int s = 0; s < 4; ++s) x[s] = unaligned<__m512i>(rows.row(s, i) + at);
      interleave(x);
      const int64_t from = (i * rows.size + at) >> w.times;
      KVJAX_UNROLL for (int u = 0; u < 4; ++u) {
        if (u % SHARED == 0)
          KVJAX_UNROLL for (int l = 0; l < LIMBS; ++l) limb[l] = held(w.of(l, from, index[u]));
        KVJAX_UNROLL for (int p = 0; p < PLANES; ++p) {
          const __m512i code = plane_of<BITS>(x[u], first + p);
          KVJAX_UNROLL for (int l = 0; l < LIMBS; ++l)
            added[p][u][l] = _mm512_dpbusd_epi32(added[p][u][l], code, limb[l]);
        }
      }
    }
  }
}

// The sums of one register of every row -> out[d], turned (packed_values.h); `minima` is what minima add to each lane.
template <int BITS, int SHARED>
void register_sums(const FourParts& rows, int64_t at, int64_t words, const Factors& w, const Vec& minima, Ahead& ahead, float* out) {
  constexpr int ALL = 8 / BITS, PLANES = ALL < 2 ? ALL : 2;
  for (int first = 0; first < ALL; first += PLANES) {
    __m512i added[PLANES][4][LIMBS] = {};
    plane_sums<BITS, PLANES, SHARED>(rows, at, first, w, ahead, added);
    KVJAX_UNROLL for (int p = 0; p < PLANES; ++p) {
      Vec byte[4];
      KVJAX_UNROLL for (int u = 0; u < 4; ++u) byte[u] = whole<BITS>(added[p][u], first + p) * w.step;
      turn(byte);
      for (int b = 0; b < 4; ++b) {
        const Vec found = (words < WIDTH ? overlaid(byte[b], words) : byte[b]) + minima;
        std::memcpy(out + (b * ALL + first + p) * words + at, &found, std::min<int64_t>(words, WIDTH) * sizeof(float));
      }
    }
  }
}

// The sums over rows of words, `factor` and `minima` from `fold` -> out[d], turned. Factors behind the last are 0.
template <int BITS>
void sums_in_fours(const Codes& v, const FourParts& rows, const float* factor, const float* minima, int32_t* room, Ahead& ahead,
                   float* out) {
  const int64_t words = v.d / v.each, numbers = rows.part * rows.size * v.groups / words;
  const int64_t stride = (numbers + WIDTH - 1) / WIDTH * WIDTH + WIDTH;
  const int times = exponent(words / v.groups);
  const Ints index = spreading(times);
  ahead.some();
  const Factors w{room, stride, limbs_of_parts(factor, numbers, room, stride), times};
  for (int64_t at = 0; at < rows.size; at += WIDTH) {
    const Vec low = spread(minima + (at >> times), index);
    if (times == 0) register_sums<BITS, 1>(rows, at, words, w, low, ahead, out);
    if (times == 1) register_sums<BITS, 2>(rows, at, words, w, low, ahead, out);
    if (times > 1) register_sums<BITS, 4>(rows, at, words, w, low, ahead, out);
  }
}

}  // namespace kvjax
#endif
