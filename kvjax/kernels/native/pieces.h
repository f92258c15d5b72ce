// Attention over lists of slots, cut into pieces that are shared out over the threads and put together in order.
#pragma once

#include <type_traits>
#include <vector>

#include "attention.h"
#include "operands.h"
#include "parallel.h"

namespace kvjax {

// A piece of a list: which list, its first slot there, its slots.
struct Piece {
  int64_t list, first, n;
};

inline std::vector<Piece> pieces_of(const int32_t* length, int64_t lists, int64_t most) {
  std::vector<Piece> pieces;
  for (int64_t list = 0; list < lists; ++list) {
    const int64_t n = std::min<int64_t>(length[list], most);
    for (int64_t first = 0; first < n; first += PIECE) pieces.push_back({list, first, std::min(PIECE, n - first)});
  }
  return pieces;
}

// A list's pieces put together, one after the other: out = sum e^(high - top) out_i / sum e^(high - top) total_i.
inline void combine(const Piece* begin, const Piece* end, const float* high, const float* total, const float* part, int64_t r,
                    int64_t d, float* out, float* lse) {
  for (int64_t row = 0; row < r; ++row) {
    float top = LOW, sum = 0;
    for (int64_t i = 0; i < end - begin; ++i) top = std::max(top, high[i * r + row]);
    std::fill_n(out + row * d, d, 0.0f);
    for (int64_t i = 0; i < end - begin; ++i) {
      const float share = std::exp(high[i * r + row] - top);
      sum += total[i * r + row] * share;
      for (int64_t c = 0; c < d; ++c) out[row * d + c] += part[(i * r + row) * d + c] * share;
    }
    const float inverse = sum > 0 ? 1 / sum : 0;
    for (int64_t c = 0; c < d; ++c) out[row * d + c] *= inverse;
    lse[row] = sum > 0 ? top + std::log(sum) : NOTHING;
  }
}

// Whether the weights of pieces go further than into the output.
struct Unwatched {
  template <class... Piece>
  void operator()(const Piece&...) const {}
};

// Every piece by itself, then put together. watch(piece, first row, rows, weights, high, total) sees the weights of every piece.
template <class Q, class T, class SlotsOf, class Watch = Unwatched>
void attention(ffi::ThreadPool pool, const Queries<Q>& q, const T* k, const T* v, const std::vector<Piece>& pieces,
               const SlotsOf& slots_of, const Where& where, float* out, float* lse, const Watch& watch = {}) {
  const int64_t r = q.rows, d = q.d, items = pieces.size();
  std::unique_ptr<float[]> scratch(new float[items * r * (d + 2)]);
  float *high = scratch.get(), *total = high + items * r, *part = total + items * r;
  each_item(pool, items, [&](int64_t i) {
    const Piece& piece = pieces[i];
    const auto slots = slots_of(piece);
    const Seen seen = where.seen(piece.list);
    looked_up(v, d, slots, piece.n);
    if (i + 1 < items) looked_up(k, d, slots_of(pieces[i + 1]), pieces[i + 1].n);
    by_readings(r, [&](int64_t rows, int64_t row) {
      alignas(64) float weights[ROWS * PIECE];
      const int64_t at = i * r + row;
      weigh(q.of(piece.list).from(row, rows), k, slots, piece.n, seen, row, weights, high + at, total + at);
      if constexpr (std::is_same_v<Q, float>) {
        weighted(weights, rows, d, v, slots, piece.n, part + at * d);
      } else {  // as tensor cores do: the sum of weights, which divides later, is of those that were not rounded
        alignas(64) Q shares[ROWS * PIECE];
        for (int64_t r = 0; r < rows; ++r) rounded(weights + r * PIECE, piece.n, shares + r * PIECE);
        weighted(shares, rows, d, v, slots, piece.n, part + at * d);
      }
      watch(piece, row, rows, weights, high + at, total + at);
    });
  });
  for (int64_t list = 0, i = 0; list < q.lists; ++list) {
    const int64_t begin = i;
    while (i < items && pieces[i].list == list) ++i;
    combine(pieces.data() + begin, pieces.data() + i, high + begin * r, total + begin * r, part + begin * r * d, r, d,
            out + list * r * d, lse + list * r);
  }
}

}  // namespace kvjax
