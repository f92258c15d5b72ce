// Query rows times keys by page, four channels a lane: queries times steps are whole numbers of steps of their own, a page at a time.
#pragma once

#include "fours.h"
#include "weighted.h"

#if defined(KVJAX_FOURS)
namespace kvjax {

// Channels that are multiplied in one go, and registers of their limbs.
constexpr int64_t FOURS = 4 * WIDTH;
constexpr int OF_FOURS = 4 * LIMBS;

// A row times a page's steps as limbs, each once for every lane that meets it -> to [D / FOURS, register of a word, limb]; the step
// of the limbs -> step; the row times minima -> rest.
template <int64_t D, class T>
inline void limbs_of_page(const float* q, const Vec& times, const T* scale, const T* low, __m512i* to, float* step, float* rest) {
  constexpr int MANY = D / WIDTH;
  Vec x[MANY], most = {}, minima = {};
  KVJAX_UNROLL for (int i = 0; i < MANY; ++i) {
    const Vec query = load(q + i * WIDTH) * times;
    x[i] = query * load(scale + i * WIDTH);
    minima += query * load(low + i * WIDTH);
    most = larger(most, magnitude(x[i]));
  }
  const Fixed fixed(_mm512_reduce_max_ps(bits_of<__m512>(most)));
  *step = fixed.step, *rest = sum(minima);
  KVJAX_UNROLL for (int i = 0; i < MANY; i += 4, to += OF_FOURS) {
    const auto at = [&](int j) { return in_bytes(x[i + j], fixed.inverse); };
    const Limbs found = limbs(at(0), at(1), at(2), at(3));
    KVJAX_UNROLL for (int l = 0; l < LIMBS; ++l) {
      to[l] = _mm512_shuffle_epi32(found.of[l], _MM_PERM_ENUM(0x00));
      to[LIMBS + l] = _mm512_shuffle_epi32(found.of[l], _MM_PERM_ENUM(0x55));
      to[2 * LIMBS + l] = _mm512_shuffle_epi32(found.of[l], _MM_PERM_ENUM(0xaa));
      to[3 * LIMBS + l] = _mm512_shuffle_epi32(found.of[l], _MM_PERM_ENUM(0xff));
    }
  }
}

// Planes FIRST .. FIRST + PLANES - 1 of W rows of words -> found[word][row][plane], summed within quarters; lane b is of byte b.
template <int BITS, int R, int W, int FIRST, int PLANES>
inline void plane_products(const uint32_t* words, int64_t d, const __m512i* const (&q)[R], Ahead& ahead,
                           Vec (&found)[W][R][8 / BITS]) {
  __m512i added[W][R][PLANES][LIMBS] = {};
  for (int64_t c = 0; c < d; c += FOURS)
    KVJAX_UNROLL for (int w = 0; w < W; ++w) {
      ahead.next();
      __m512i x[4];
      KVJAX_UNROLL for (int i = 0; i < 4; ++i) x[i] = unaligned<__m512i>(words + w * d + c + i * WIDTH);
      interleave(x);
      KVJAX_UNROLL for (int u = 0; u < 4; ++u)
        KVJAX_UNROLL for (int p = 0; p < PLANES; ++p) {
          const __m512i code = plane_of<BITS>(x[u], FIRST + p);
          KVJAX_UNROLL for (int r = 0; r < R; ++r)
            KVJAX_UNROLL for (int l = 0; l < LIMBS; ++l)
              added[w][r][p][l] = _mm512_dpbusd_epi32(added[w][r][p][l], code, q[r][c / FOURS * OF_FOURS + u * LIMBS + l]);
        }
    }
  KVJAX_UNROLL for (int w = 0; w < W; ++w)
    KVJAX_UNROLL for (int r = 0; r < R; ++r)
      KVJAX_UNROLL for (int p = 0; p < PLANES; ++p) found[w][r][FIRST + p] = whole<BITS>(added[w][r][p], FIRST + p);
}

// Planes that are summed at once, and rows of words that meet the same limbs: as many as there are registers for their sums.
constexpr int planes_beside(int left, int rows) { return std::min(left, rows == 1 ? 4 : rows == 2 ? 2 : 1); }
constexpr int words_beside(int many, int planes, int rows) { return std::clamp(4 / (rows * planes_beside(planes, rows)), 1, many); }

// All planes of W rows of words.
template <int BITS, int R, int W, int FIRST>
inline void planes_products(const uint32_t* words, int64_t d, const __m512i* const (&q)[R], Ahead& ahead,
                            Vec (&found)[W][R][8 / BITS]) {
  constexpr int LEFT = 8 / BITS - FIRST, NOW = planes_beside(LEFT, R);
  plane_products<BITS, R, W, FIRST, NOW>(words, d, q, ahead, found);
  if constexpr (NOW < LEFT) planes_products<BITS, R, W, FIRST + NOW>(words, d, q, ahead, found);
}

// Where the sums of WIDTH slots are: slot s is code s % EACH of word s / EACH, and codes of a byte are planes of their own.
template <int BITS>
inline Ints slots_in_order() {
  constexpr int EACH = 32 / BITS, PLANES = 8 / BITS;
  Ints from;
  for (int s = 0; s < WIDTH; ++s) from[s] = 4 * (s / EACH * PLANES + s % PLANES) + s % EACH / PLANES;
  return from;
}

// A page's scores of R rows -> out[row * PIECE + slot]; `q` and `step` are from `limbs_of`, `rest` is what minima add.
template <int BITS, int R>
void page_in_fours(const uint32_t* words, int64_t d, int64_t page, const __m512i* const (&q)[R], const float* step,
                   const float* rest, Ahead& ahead, float* out) {
  constexpr int EACH = 32 / BITS, PLANES = 8 / BITS, MANY = WIDTH / EACH, W = words_beside(MANY, PLANES, R);
  const __m512i order = bits_of<__m512i>(slots_in_order<BITS>());
  for (int64_t slot = 0; slot < page; slot += WIDTH, words += MANY * d) {
    Vec found[R][4];
    KVJAX_UNROLL for (int first = 0; first < MANY; first += W) {
      Vec own[W][R][PLANES];
      planes_products<BITS, R, W, 0>(words + first * d, d, q, ahead, own);
      KVJAX_UNROLL for (int w = 0; w < W; ++w)
        KVJAX_UNROLL for (int r = 0; r < R; ++r)
          KVJAX_UNROLL for (int p = 0; p < PLANES; ++p) found[r][(first + w) * PLANES + p] = own[w][r][p];
    }
    KVJAX_UNROLL for (int r = 0; r < R; ++r) {
      const Vec all = bits_of<Vec>(_mm512_permutexvar_ps(order, bits_of<__m512>(sums(found[r]))));
      store(out + r * PIECE + slot, all * step[r] + rest[r]);
    }
  }
}

// Scores of n slots from a page's first on; see `packed_scores`.
template <int BITS, int R, int64_t D>
void pages_in_fours(const Rows<float>& q, const Codes& k, int64_t first, int64_t n, Ahead& ahead, float* out) {
  alignas(64) __m512i limbs[R][D / FOURS * OF_FOURS];
  const __m512i* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = limbs[r];
  constexpr int NOW = planes_beside(8 / BITS, R), TURNS = (8 / BITS + NOW - 1) / NOW;
  // A fifth is left for what comes between keys and values, so that memory does not wait then.
  ahead.in((n + k.each - 1) / k.each * TURNS * D / FOURS * 5 / 4);
  by_type(*k.scale, [&](auto type) {
    using T = decltype(type);
    const T *scale = data<T>(*k.scale) + first / k.page * D, *low = data<T>(*k.low) + first / k.page * D;
    const uint32_t* words = k.words + first / k.page * k.words_a_row();
    for (int64_t slot = 0; slot < n; slot += k.page, scale += D, low += D, words += k.words_a_row()) {
      float step[R], rest[R];
      for (int r = 0; r < R; ++r) limbs_of_page<D>(q[r], all(q.scale), scale, low, limbs[r], step + r, rest + r);
      page_in_fours<BITS, R>(words, D, k.page, rows, step, rest, ahead, out + slot);
    }
  });
}

}  // namespace kvjax
#endif
