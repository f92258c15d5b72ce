// Query rows times keys that are codes: steps and minima are folded into queries, or into sums of a group's products.
#pragma once

#include <memory>
#include <vector>

#include "packed_scores_fours.h"

namespace kvjax {

// Query rows that are multiplied with the same codes while those are in registers.
constexpr int BESIDE_CODES = WIDTH == 16 ? 4 : 2;
// Channels at most.
constexpr int64_t CHANNELS = 256;

// ---- Keys by page: s_j = sum_c (q_c s_c) code_jc + sum_c q_c m_c.

// The sums of four registers from what `quarter` makes of them.
#if defined(__AVX512F__)
inline Quad in_order(const Quarter& four) { return folded(four); }
#else
inline Quad in_order(const Quarter& four) { return four; }
#endif

// A page's scores of R rows -> out[row * PIECE + slot]; `folded` are the rows times the steps, `rest` what minima add.
template <int BITS, int R>
void page_products(const uint32_t* words, int64_t d, int64_t page, const float* folded, const float* rest, float* out) {
  constexpr int EACH = 32 / BITS, MANY = WIDTH / 4;
  Quarter found[R][MANY];
  for (int64_t slot = 0; slot < page; slot += CODES) {
    const uint32_t* mine = words + slot / EACH * d;
    const int shift = int(slot % EACH) * BITS;
    Vec added[R][CODES] = {};
    for (int64_t c = 0; c < d; c += WIDTH) {
      const Words four = unaligned<Words>(mine + c) >> shift;
      each_code([&](auto k) {
        const Vec x = code<BITS, decltype(k)::value>(four);
        KVJAX_UNROLL for (int r = 0; r < R; ++r) added[r][decltype(k)::value] += load(folded + r * CHANNELS + c) * x;
      });
    }
    KVJAX_UNROLL for (int r = 0; r < R; ++r) {
      KVJAX_UNROLL for (int k = 0; k < CODES; ++k) added[r][k] *= undone<BITS>(k);
      const Quarter four = quarter(added[r][0], added[r][1], added[r][2], added[r][3]);
      float* to = out + r * PIECE;
      if (page % WIDTH) {
        store(to + slot, in_order(four) + rest[r]);
        continue;
      }
      found[r][slot / 4 % MANY] = four;
      if (slot / 4 % MANY == MANY - 1) store(to + slot / WIDTH * WIDTH, sums(found[r]) + rest[r]);
    }
  }
}

template <int BITS, int R>
void paged_scores(const Rows<float>& q, const Codes& k, int64_t first, int64_t n, Ahead& ahead, float* out) {
#if defined(KVJAX_FOURS)
  if (k.page % WIDTH == 0 && k.d == FOURS) return pages_in_fours<BITS, R, FOURS>(q, k, first, n, ahead, out);
  if (k.page % WIDTH == 0 && k.d == 2 * FOURS) return pages_in_fours<BITS, R, 2 * FOURS>(q, k, first, n, ahead, out);
#endif
  ahead.in((n + k.page - 1) / k.page);
  alignas(64) float folded[R * CHANNELS], scale[CHANNELS], low[CHANNELS], rest[R];
  for (int64_t slot = 0; slot < n; slot += k.page) {
    const int64_t page = (first + slot) / k.page;
    ahead.next();
    steps(*k.scale, page * k.d, k.d, k.d, scale), steps(*k.low, page * k.d, k.d, k.d, low);
    for (int r = 0; r < R; ++r) {
      Vec minima = {};
      for (int64_t c = 0; c < k.d; c += WIDTH) {
        const Vec query = load(q[r] + c) * q.scale;
        store(folded + r * CHANNELS + c, query * load(scale + c));
        minima += query * load(low + c);
      }
      rest[r] = sum(minima);
    }
    page_products<BITS, R>(k.words + page * k.words_a_row(), k.d, k.page, folded, rest, out + slot);
  }
}

// ---- Keys by slot: s_j = sum_groups (s_jg sum_{c in g} q_c code_jc + m_jg sum_{c in g} q_c).

// Queries in the order in which words hold channels: of registers of words v and codes k [v, k, lane], and each lane's sum
// [v, lane]. Where a slot has fewer words than a register, its lanes are repeated.
struct TurnedQueries {
  int64_t lanes, each;
  std::vector<float> numbers, sums;

  TurnedQueries(const Queries<float>& q, const Codes& k) : lanes(std::max<int64_t>(k.d / k.each, WIDTH)), each(k.each) {
    const int64_t many = q.lists * q.rows, words = k.d / k.each;
    numbers.resize(many * lanes * each), sums.resize(many * lanes);
    for (int64_t row = 0; row < many; ++row)
      for (int64_t lane = 0; lane < lanes; ++lane)
        for (int64_t i = 0; i < each; ++i) {
          const float x = q.numbers[row * q.d + lane % words * each + i] * q.scale;
          const float power = k.bits == 2 ? undone<2>(i % CODES) : k.bits == 4 ? undone<4>(i % CODES) : undone<8>(i % CODES);
          numbers[((row * lanes + lane / WIDTH * WIDTH) * each) + i * WIDTH + lane % WIDTH] = x * power;
          sums[row * lanes + lane] += x;
        }
  }
  const float* of(int64_t row) const { return numbers.data() + row * lanes * each; }
  const float* sum_of(int64_t row) const { return sums.data() + row * lanes; }
};

// Sums of two neighbours of two registers, one after the other.
inline Vec halved(const Vec& x, const Vec& y) {
#if defined(__AVX512F__)
  return KVJAX_WIDE(x, y, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         KVJAX_WIDE(x, y, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif defined(__AVX__)
  return KVJAX_SHUFFLE(Ints, x, y, 0, 2, 4, 6, 8, 10, 12, 14) + KVJAX_SHUFFLE(Ints, x, y, 1, 3, 5, 7, 9, 11, 13, 15);
#else
  return KVJAX_SHUFFLE(Ints, x, y, 0, 2, 4, 6) + KVJAX_SHUFFLE(Ints, x, y, 1, 3, 5, 7);
#endif
}
// Sums of L neighbours of L registers.
template <int L>
inline Vec neighbours(const Vec* x) {
  if constexpr (L == 1) return x[0];
  else return halved(neighbours<L / 2>(x), neighbours<L / 2>(x + L / 2));
}

// Scores of WIDTH slots of R rows, of L words in a register each -> out[row * PIECE + slot].
template <int BITS, int R, int L>
inline void slot_products(const uint32_t* words, int64_t registers, const float* const (&q)[R], const float* const (&sums)[R],
                          const float* scale, const float* low, int times, const Ints& index, float* out) {
  constexpr int EACH = 32 / BITS;
  Vec found[R][L];
  for (int i = 0; i < L; ++i) {
    Vec total[R] = {};
    for (int64_t v = 0; v < registers; ++v) {
      const int64_t at = (i * registers + v) * WIDTH;
      const Words mine = unaligned<Words>(words + at);
      Vec added[R] = {};
      KVJAX_UNROLL for (int part = 0; part < EACH / CODES; ++part)
        each_code([&](auto k) {
          const Vec x = code<BITS, decltype(k)::value>(mine >> (part * CODES * BITS));
          KVJAX_UNROLL for (int r = 0; r < R; ++r)
            added[r] += load(q[r] + (v * EACH + part * CODES + decltype(k)::value) * WIDTH) * x;
        });
      const Vec s = spread(scale + (at >> times), index), m = spread(low + (at >> times), index);
      KVJAX_UNROLL for (int r = 0; r < R; ++r) total[r] += added[r] * s + load(sums[r] + v * WIDTH) * m;
    }
    KVJAX_UNROLL for (int r = 0; r < R; ++r) found[r][i] = total[r];
  }
  KVJAX_UNROLL for (int r = 0; r < R; ++r) store(out + r * PIECE, neighbours<L>(found[r]));
}

template <int BITS, int R, int L>
void slots_scores(const TurnedQueries& q, int64_t row, const Codes& k, int64_t first, int64_t n, float* scale, float* low,
                  Ahead& ahead, float* out) {
  const int64_t words = k.d / k.each, registers = std::max<int64_t>(words / WIDTH, 1);
  const int times = exponent(words / k.groups);
  const Ints index = spreading(times);
  const float *queries[R], *sums[R];
  for (int r = 0; r < R; ++r) queries[r] = q.of(row + r), sums[r] = q.sum_of(row + r);
  const uint32_t* mine = k.words + first * words;
  ahead.in((n + WIDTH - 1) / WIDTH);
  for (int64_t slot = 0; slot < n; slot += WIDTH) {
    ahead.next();
    uint32_t rest[WIDTH * CHANNELS / 4];
    const uint32_t* from = mine + slot * words;
    if (n - slot < WIDTH) {
      std::memcpy(rest, from, (n - slot) * words * sizeof(uint32_t));
      std::fill(rest + (n - slot) * words, rest + WIDTH * words, 0u);
      from = rest;
    }
    slot_products<BITS, R, L>(from, registers, queries, sums, scale + slot * k.groups, low + slot * k.groups, times, index,
                              out + slot);
  }
}

// body(integral_constant<L>) for the words of a slot in a register.
template <int L = WIDTH, class Body>
void by_lanes(int64_t words, const Body& body) {
  if constexpr (L > 1)
    if (words < L) return by_lanes<L / 2>(words, body);
  body(std::integral_constant<int, L>());
}

// Room for steps or minima of a piece, of a register of slots behind them, and of whole registers in four parts.
inline int64_t room_for(const Codes& x) { return (PIECE + WIDTH) * x.groups + 8 * WIDTH; }

// Scores of rows row .. of a list with coded keys of slots first .. first + n - 1 -> out[row * PIECE + slot]; `room` is twice
// `room_for`. What stands behind the n scores, up to whole registers or pages, is overwritten. `ahead` is asked for meanwhile.
inline void packed_scores(const Rows<float>& q, const TurnedQueries* turned, int64_t row, const Codes& k, int64_t first, int64_t n,
                          float* room, Ahead& ahead, float* out) {
  if (n == 0) return;
  float *scale = room, *low = room + room_for(k);
  if (k.page == 1)
    for (const auto& [from, to] : {std::pair{k.scale, scale}, std::pair{k.low, low}})
      steps(*from, first * k.groups, n * k.groups, room_for(k), to);
  by_bits(k.bits, [&](auto bits) {
    constexpr int BITS = decltype(bits)::value;
    by_rows<BESIDE_CODES>(q.n, [&](auto many, int64_t r) {
      constexpr int R = decltype(many)::value;
      if (k.page > 1) return paged_scores<BITS, R>(q.from(r, R), k, first, n, ahead, out + r * PIECE);
      by_lanes(k.d / k.each, [&](auto lanes) {
        slots_scores<BITS, R, decltype(lanes)::value>(*turned, row + r, k, first, n, scale, low, ahead, out + r * PIECE);
      });
    });
  });
}

}  // namespace kvjax
