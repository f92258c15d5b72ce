// Weighted sums of values that are codes, by slot: sum_j (w_j s_jg) code_jc + sum_j w_j m_jg.
#pragma once

#include "packed_scores.h"
#include "packed_values_fours.h"

namespace kvjax {

// Sums are in the order in which words hold channels: of code k of word w at k * words + w; `channels` puts them right.
inline void channels(const float* turned, int64_t d, int64_t each, float* out) {
  const int64_t words = d / each;
  for (int64_t w = 0; w < words; ++w)
    for (int64_t k = 0; k < each; ++k) out[w * each + k] = turned[k * words + w];
}
// out += numbers by channel, in that order.
inline void add_turned(const float* numbers, int64_t d, int64_t each, float* out) {
  const int64_t words = d / each;
  for (int64_t w = 0; w < words; ++w)
    for (int64_t k = 0; k < each; ++k) out[k * words + w] += numbers[w * each + k];
}

// Weights times steps of n slots -> factor; sums of weights times minima -> minima [max(groups, WIDTH)].
template <class Minima>
inline void fold_each(const float* weights, int64_t n, int64_t groups, const float* scale, const float* low, float* factor,
                      const Minima& minima) {
  const int each = exponent(groups);
  const Ints index = spreading(each);
  for (int64_t i = 0; i < n * groups; i += WIDTH) {
    const Vec w = spread(weights + (i >> each), index);
    store(factor + i, w * load(scale + i));
    minima(i, w * load(low + i));
  }
}
inline void fold(const float* weights, int64_t n, int64_t groups, const float* scale, const float* low, float* factor,
                 float* minima) {
  if (groups > WIDTH) {
    std::fill_n(minima, groups, 0.0f);
    fold_each(weights, n, groups, scale, low, factor, [&](int64_t i, const Vec& x) {
      float* to = minima + (i & (groups - 1));
      store(to, load(to) + x);
    });
    return;
  }
  Vec sums = {};
  fold_each(weights, n, groups, scale, low, factor, [&](int64_t, const Vec& x) { sums += x; });
  store(minima, sums);
  for (int64_t lane = groups; lane < WIDTH; ++lane) minima[lane % groups] += minima[lane];
}

// Sums of four codes of every word of registers v, v + registers, ... of R rows.
template <int BITS, int R>
inline void four_codes(const uint32_t* words, int64_t many, int64_t registers, int64_t v, int shift,
                       const float* const (&factor)[R], int times, const Ints& index, Ahead& ahead,
                       Vec (&added)[R][CODES]) {
  ahead.in((many + registers - 1) / registers);
  KVJAX_UNROLL for (int r = 0; r < R; ++r)
    KVJAX_UNROLL for (int k = 0; k < CODES; ++k) added[r][k] = Vec{};
  for (int64_t i = v; i < many; i += registers) {
    ahead.next();
    const Words four = unaligned<Words>(words + i * WIDTH) >> shift;
    Vec w[R];
    KVJAX_UNROLL for (int r = 0; r < R; ++r) w[r] = spread(factor[r] + (i * WIDTH >> times), index);
    each_code([&](auto k) {
      const Vec x = code<BITS, decltype(k)::value>(four);
      KVJAX_UNROLL for (int r = 0; r < R; ++r) added[r][decltype(k)::value] += w[r] * x;
    });
  }
  KVJAX_UNROLL for (int r = 0; r < R; ++r)
    KVJAX_UNROLL for (int k = 0; k < CODES; ++k) added[r][k] *= undone<BITS>(k);
}

// The sums of R rows over words of whole registers, `factor` and `minima` from `fold` -> out[row * d], turned.
template <int BITS, int R>
void packed_sums(const Codes& v, const uint32_t* words, int64_t many, const float* const (&factor)[R],
                 const float* const (&minima)[R], Ahead& ahead, float* out) {
  const int64_t row = v.d / v.each, registers = std::max<int64_t>(row / WIDTH, 1);
  const int times = exponent(row / v.groups);
  const Ints index = spreading(times);
  for (int64_t at = 0; at < registers; ++at)
    for (int64_t first = 0; first < v.each; first += CODES) {
      Vec added[R][CODES];
      four_codes<BITS, R>(words, many, registers, at, int(first) * BITS, factor, times, index, ahead, added);
      for (int r = 0; r < R; ++r)
        for (int k = 0; k < CODES; ++k) {
          float* to = out + r * v.d + (first + k) * row + at * WIDTH;
          const Vec own = row < WIDTH ? overlaid(added[r][k], row) : added[r][k];
          const Vec found = own + spread(minima[r] + (at * WIDTH >> times), index);
          std::memcpy(to, &found, std::min<int64_t>(row, WIDTH) * sizeof(float));
        }
    }
}

// The sums of R rows over n words, what is no whole register at their end included.
#if defined(KVJAX_FOURS)
constexpr int VALUES_BESIDE = 1;

template <int BITS, int R>
void all_sums(const Codes& v, const uint32_t* words, int64_t n, const float* const (&factor)[R], const float* const (&minima)[R],
              float* room, Ahead& ahead, float* out) {
  const int64_t size = std::max<int64_t>(v.d / v.each, WIDTH);
  uint32_t last[CHANNELS / 4] = {};
  std::memcpy(last, words + n / size * size, n % size * sizeof(uint32_t));
  static_assert(R == VALUES_BESIDE);
  sums_in_fours<BITS>(v, FourParts(words, last, n, size), factor[0], minima[0], reinterpret_cast<int32_t*>(room), ahead, out);
}
#else
constexpr int VALUES_BESIDE = BESIDE_CODES;

template <int BITS, int R>
void all_sums(const Codes& v, const uint32_t* words, int64_t n, const float* const (&factor)[R], const float* const (&minima)[R],
              float*, Ahead& ahead, float* out) {
  const int64_t whole = n / WIDTH, left = n % WIDTH;
  packed_sums<BITS, R>(v, words, whole, factor, minima, ahead, out);
  if (left == 0) return;
  // A slot has fewer words than a register here.
  uint32_t rest[WIDTH] = {};
  std::memcpy(rest, words + whole * WIDTH, left * sizeof(uint32_t));
  alignas(64) float last[R * CHANNELS], nothing[2 * CHANNELS + WIDTH] = {};
  const float *none[R], *behind[R];
  for (int r = 0; r < R; ++r) none[r] = nothing, behind[r] = factor[r] + whole * WIDTH * v.groups * v.each / v.d;
  packed_sums<BITS, R>(v, rest, 1, behind, none, ahead, last);
  for (int64_t i = 0; i < R * v.d; ++i) out[i] += last[i];
}
#endif

// Room that `packed_values` needs: steps, minima, what they make of each row's weights, and limbs of rows that are summed together.
inline int64_t room_for_values(const Codes& v, int64_t rows) {
  return room_for(v) * (2 + rows + VALUES_BESIDE) + rows * (std::max<int64_t>(v.groups, WIDTH) + WIDTH);
}

// sum_i weights[row * PIECE + i] v_i of the coded values of slots first .. first + n - 1 -> out[row * d], turned. Weights behind
// the n are read up to a register, and do not count. `ahead` is asked for meanwhile.
inline void packed_values(const float* weights, int64_t rows, const Codes& v, int64_t first, int64_t n, float* room, Ahead& ahead,
                          float* out) {
  std::fill_n(out, rows * v.d, 0.0f);
  if (n == 0) return;
  const int64_t words = v.d / v.each, size = room_for(v), span = std::max<int64_t>(v.groups, WIDTH) + WIDTH;
  float *scale = room, *low = scale + size, *factor = low + size, *minima = factor + rows * size;
  float* const limbs = minima + rows * span;
  steps(*v.scale, first * v.groups, n * v.groups, size, scale), steps(*v.low, first * v.groups, n * v.groups, size, low);
  ahead.some();
  for (int64_t r = 0; r < rows; ++r) {
    fold(weights + r * PIECE, n, v.groups, scale, low, factor + r * size, minima + r * span);
    std::fill(factor + r * size + n * v.groups, factor + (r + 1) * size, 0.0f);
  }
  const uint32_t* mine = v.words + first * words;
  by_bits(v.bits, [&](auto bits) {
    constexpr int BITS = decltype(bits)::value;
    by_rows<VALUES_BESIDE>(rows, [&](auto many, int64_t row) {
      constexpr int R = decltype(many)::value;
      const float *factors[R], *lows[R];
      for (int r = 0; r < R; ++r) factors[r] = factor + (row + r) * size, lows[r] = minima + (row + r) * span;
      all_sums<BITS, R>(v, mine, n * words, factors, lows, limbs, ahead, out + row * v.d);
    });
  });
}

}  // namespace kvjax
