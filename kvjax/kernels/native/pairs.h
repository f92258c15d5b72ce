// Products of many rows of bfloat16 with a panel of 64 vectors, as in `panel.h`, two numbers of each at a time: exact, and summed in
// float32.
#pragma once

#include "multiply.h"
#include "panel.h"

#if defined(__AVX512BF16__)
namespace kvjax {

// Where row r has its pair c: at from + r * row + c * pair.
struct Words32 {
  const uint32_t* from;
  int64_t row, pair;
};

inline const uint32_t* words(const BFloat16* numbers) { return reinterpret_cast<const uint32_t*>(numbers); }

// out[r][lane] (+)= sum over n pairs of lanes[pair][lane] * rows[r][pair] for MANY rows, `stride` apart in `out`.
template <int MANY, bool ADD>
[[gnu::noinline]] void pairs_of_lanes(const uint32_t* lanes, const Words32& rows, int64_t n, float* out, int64_t stride) {
  Vec sums[MANY][REGISTERS];
  KVJAX_UNROLL for (int r = 0; r < MANY; ++r)
    KVJAX_UNROLL for (int i = 0; i < REGISTERS; ++i) sums[r][i] = Vec{};
  const uint32_t* pair = rows.from;
  for (int64_t c = 0; c < n; ++c, lanes += LANES, pair += rows.pair) {
    Words x[REGISTERS];
    KVJAX_UNROLL for (int i = 0; i < REGISTERS; ++i) x[i] = unaligned<Words>(lanes + i * WIDTH);
    KVJAX_UNROLL for (int r = 0; r < MANY; ++r)
      KVJAX_UNROLL for (int i = 0; i < REGISTERS; ++i)
        asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sums[r][i]) : "v"(x[i]), "m"(pair[r * rows.row]));
  }
  KVJAX_UNROLL for (int r = 0; r < MANY; ++r)
    KVJAX_UNROLL for (int i = 0; i < REGISTERS; ++i) {
      float* const to = out + r * stride + i * WIDTH;
      store(to, ADD ? load(to) + sums[r][i] : sums[r][i]);
    }
}

// The same for any number of rows, MANY at a time.
template <int MANY, bool ADD>
inline void pairs_of(const uint32_t* lanes, Words32 rows, int64_t many, int64_t n, float* out, int64_t stride = LANES) {
  if constexpr (MANY > 0) {
    for (; many >= MANY; many -= MANY, rows.from += MANY * rows.row, out += MANY * stride)
      pairs_of_lanes<MANY, ADD>(lanes, rows, n, out, stride);
    if (many) pairs_of<MANY - 1, ADD>(lanes, rows, many, n, out, stride);
  }
}

// A row's numbers 2 c and 2 c + 1 are word c of its lane; lanes beyond `many` are zero.
inline void as_pairs(const BFloat16* rows, int64_t many, int64_t d, uint32_t* lanes) {
  std::fill_n(lanes, d / 2 * LANES, 0u);
  for (int64_t i = 0; i < many; ++i)
    for (int64_t c = 0; c < d / 2; ++c) lanes[c * LANES + i] = unaligned<uint32_t>(rows + i * d + 2 * c);
}

}  // namespace kvjax
#endif
