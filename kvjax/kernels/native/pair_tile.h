// `query_tile.h` where queries, keys and values are bfloat16 and the processor multiplies their pairs: twice as many products an
// instruction, and nothing converted. Scores are exact products with float32 sums, the softmax is in float32; probabilities are
// rounded to bfloat16 for their products with values, whose sums are float32 again.
#pragma once

#include "pairs.h"
#include "query_tile.h"

namespace kvjax {
#if defined(__AVX512BF16__)

// The numbers of rows 2 j and 2 j + 1 side by side: pairs[j][c]; a last row without another is beside zeros.
inline void beside(const BFloat16* rows, int64_t many, int64_t d, uint32_t* pairs) {
  for (; many > 1; many -= 2, rows += 2 * d, pairs += d)
    for (int64_t c = 0; c < d; ++c) pairs[c] = uint32_t(rows[d + c].bits) << 16 | rows[c].bits;
  for (int64_t c = 0; c < many * d; ++c) pairs[c] = rows[c].bits;
}

// The bits of float32 numbers, rounded to bfloat16, ties to even, in the upper half of each word. Not for NaN.
inline Words rounded(const Vec& x) {
  const Words bits = bits_of<Words>(x);
  return bits + 0x7fffu + (bits >> 16 & 1u);
}

// A tile of an even number of channels.
class PairTile : private Tile {
 public:
  PairTile(int64_t d, float scale) : Tile(d, scale), words_(new uint32_t[(d + LANES / 2) * LANES]) {
    pairs_ = words_.get();
    weights_ = pairs_ + d / 2 * LANES;
    values_ = weights_ + LANES / 2 * LANES;
  }

  void begin(const BFloat16* q, int64_t rows) { as_pairs(q, rows, d_, pairs_); }

  template <class Hide>
  void see(const BFloat16* k, const BFloat16* v, int64_t keys, const Hide& hide) {
    pairs_of<SIDE, false>(pairs_, {words(k), d_ / 2, 1}, keys, d_ / 2, scores_);
    hide(scores_);
    for (int64_t i = 0; i < keys * LANES; i += WIDTH) store(scores_ + i, load(scores_ + i) * scale_);
    for (int64_t i = 0; i < LANES; i += WIDTH) probabilities(i, keys);
    weigh(keys);
    beside(v, keys, d_, values_);
    pairs_of<SIDE, true>(weights_, {values_, 1, d_}, d_, (keys + 1) / 2, out_);
  }

  using Tile::high;
  using Tile::leave;
  using Tile::write;

 private:
  // Probabilities of two keys side by side in a word.
  void weigh(int64_t keys) {
    if (keys % 2) std::fill_n(scores_ + keys * LANES, LANES, 0.0f);
    for (int64_t j = 0; j < keys; j += 2)
      for (int64_t i = 0; i < LANES; i += WIDTH) {
        const float* const even = scores_ + j * LANES + i;
        store(weights_ + j / 2 * LANES + i, (rounded(load(even + LANES)) & 0xffff0000u) | rounded(load(even)) >> 16);
      }
  }

  const std::unique_ptr<uint32_t[]> words_;
  uint32_t *pairs_, *weights_, *values_;
};

#else
using PairTile = Tile;  // never asked for
#endif
}  // namespace kvjax
