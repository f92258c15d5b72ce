// A prompt's rows times a weight matrix: 64 outputs' weights are arranged as a panel, and a block of rows meets some channels of every
// panel at a time, all of which the second-level cache holds.
#pragma once

#include <memory>

#include "pairs.h"
#include "panel.h"
#include "parallel.h"

namespace kvjax {

// Most rows of a block, and bytes of the panels that are made at once.
constexpr int64_t BLOCK = 96, PANELS = 1 << 24;

// Rows shared out into blocks, as many for every thread, of whole groups of SIDE rows (but for the last), as equal as these allow.
struct Blocks {
  int64_t rows, groups, count;

  Blocks(int64_t rows, int64_t threads) : rows(rows), groups((rows + SIDE - 1) / SIDE) {
    const int64_t fewest = (rows + BLOCK - 1) / BLOCK;
    count = (fewest + threads - 1) / threads * threads;
  }
  int64_t begin(int64_t i) const { return std::min(rows, groups * i / count * SIDE); }
};

// Numbers of float32, one at a time.
struct Single {
  using Row = float;
  using Lane = float;
  static constexpr int64_t CHANNELS = 512, OF_LANE = 1;  // channels met at a time, and those of a lane's number

  template <class T>
  static void arrange(const T* weights, int64_t many, int64_t d, float* panel) {
    as_panel(weights, many, d, 1.0f, panel);
  }
  template <bool ADD>
  static void multiply(const float* panel, const float* x, int64_t rows, int64_t d, int64_t channels, float* out, int64_t stride) {
    products_with_panel<ADD>(panel, {x, d, 1}, rows, channels, out, stride);
  }
};

#if defined(__AVX512BF16__)
// Of bfloat16, two at a time; d is even.
struct Pairs {
  using Row = BFloat16;
  using Lane = uint32_t;
  static constexpr int64_t CHANNELS = 1024, OF_LANE = 2;

  static void arrange(const BFloat16* weights, int64_t many, int64_t d, uint32_t* panel) { as_pairs(weights, many, d, panel); }
  template <bool ADD>
  static void multiply(const uint32_t* panel, const BFloat16* x, int64_t rows, int64_t d, int64_t channels, float* out,
                       int64_t stride) {
    pairs_of<SIDE, ADD>(panel, {words(x), d / 2, 1}, rows, channels / 2, out, stride);
  }
};
#endif

// Room of this thread for `many` numbers, kept for the next call: at most PANELS bytes beyond those of one panel.
template <class Lane>
Lane* kept_room(int64_t many) {
  thread_local std::unique_ptr<Lane[]> room;
  thread_local int64_t size = 0;
  if (size < many) room.reset(new Lane[size = many]);
  return room.get();
}

// A block of rows times one panel -> to, rows `apart`.
template <class Kind>
void block_times_panel(const typename Kind::Row* x, int64_t rows, int64_t d, const typename Kind::Lane* panel, float* to,
                       int64_t apart) {
  constexpr int64_t SOME = Kind::CHANNELS;
  Kind::template multiply<false>(panel, x, rows, d, std::min(SOME, d), to, apart);
  for (int64_t c = SOME; c < d; c += SOME)
    Kind::template multiply<true>(panel + c / Kind::OF_LANE * LANES, x + c, rows, d, std::min(SOME, d - c), to, apart);
}

// MANY matrices of `outputs` rows of d weights, all met by the same rows. finish(panels, x, rows, row, first, width) makes what comes
// of a block, which begins at `row`, and one panel of each, those of the `width` outputs from `first` on.
template <class Kind, int MANY, class T, class Finish>
void blocks_of_rows(xla::ffi::ThreadPool& pool, const typename Kind::Row* x, int64_t rows, int64_t d, const T* const (&w)[MANY],
                    int64_t outputs, const Finish& finish) {
  using Lane = typename Kind::Lane;
  const int64_t every = (outputs + LANES - 1) / LANES, size = d / Kind::OF_LANE * LANES;
  const int64_t many = std::clamp<int64_t>(PANELS / (4 * MANY * size), 1, every);
  Lane* const panels = kept_room<Lane>(MANY * many * size);
  const Blocks blocks(rows, std::max<int64_t>(pool.num_threads(), 1));
  for (int64_t begin = 0; begin < every; begin += many) {
    const int64_t count = std::min(many, every - begin);
    const auto width = [&](int64_t p) { return std::min(LANES, outputs - (begin + p) * LANES); };
    each_item(pool, MANY * count, [&](int64_t item) {
      const int64_t p = item / MANY;
      Kind::arrange(w[item % MANY] + (begin + p) * d * LANES, width(p), d, panels + item * size);
    });
    each_item(pool, blocks.count, [&](int64_t item) {
      const int64_t row = blocks.begin(item), some = blocks.begin(item + 1) - row;
      for (int64_t p = 0; p < count; ++p)
        finish(panels + MANY * p * size, x + row * d, some, row, (begin + p) * LANES, width(p));
    });
  }
}

// y[row, output] = sum_c x[row, c] w[output, c].
template <class Kind, class T>
void multiplied(xla::ffi::ThreadPool& pool, const typename Kind::Row* x, int64_t rows, int64_t d, const T* w, int64_t outputs,
                float* y) {
  const auto finish = [&](const auto* panel, const auto* block, int64_t some, int64_t row, int64_t first, int64_t width) {
    float* const to = y + row * outputs + first;
    if (width == LANES) return block_times_panel<Kind>(block, some, d, panel, to, outputs);
    alignas(64) float tile[BLOCK * LANES];
    block_times_panel<Kind>(block, some, d, panel, tile, LANES);
    for (int64_t r = 0; r < some; ++r) std::copy_n(tile + r * LANES, width, to + r * outputs);
  };
  blocks_of_rows<Kind, 1>(pool, x, rows, d, {w}, outputs, finish);
}

// x / (1 + exp(-x)).
inline Vec silu(const Vec& x) {
  const Vec small = exponential(x < 0.0f ? x : -x);
  return x * (x < 0.0f ? small : all(1.0f)) / (1.0f + small);
}

// y[row, output] = silu(sum_c x[row, c] gate[output, c]) * sum_c x[row, c] up[output, c].
template <class Kind, class T>
void gated(xla::ffi::ThreadPool& pool, const typename Kind::Row* x, int64_t rows, int64_t d, const T* gate, const T* up,
           int64_t outputs, float* y) {
  const auto finish = [&](const auto* panels, const auto* block, int64_t some, int64_t row, int64_t first, int64_t width) {
    alignas(64) float gates[BLOCK * LANES];
    alignas(64) float ups[BLOCK * LANES];
    block_times_panel<Kind>(block, some, d, panels, gates, LANES);
    block_times_panel<Kind>(block, some, d, panels + d / Kind::OF_LANE * LANES, ups, LANES);
    for (int64_t i = 0; i < some * LANES; i += WIDTH) store(ups + i, silu(load(gates + i)) * load(ups + i));
    for (int64_t r = 0; r < some; ++r) std::copy_n(ups + r * LANES, width, y + (row + r) * outputs + first);
  };
  blocks_of_rows<Kind, 2>(pool, x, rows, d, {gate, up}, outputs, finish);
}

}  // namespace kvjax
