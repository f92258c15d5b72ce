// Attention over regions that also hands out the probabilities of some, as an XLA custom call. Definition: ragged_attention/api.py.
#include "pieces.h"

namespace kvjax {
namespace {

// By list: the place of its probabilities in an output [places, rows, cap], or -1. By place: the slots they are about.
struct Places {
  std::vector<int64_t> of_list, upto;

  Places(const S32<1>& heads, const S32<2>& wanted, const S32<2>& length, int64_t cap) : of_list(length.element_count(), -1) {
    const int64_t many = heads.element_count(), all = length.dimensions()[1];
    for (int64_t place = 0; place < int64_t(wanted.element_count()); ++place) {
      const int64_t list = place / many * all + std::clamp<int64_t>(heads.typed_data()[place % many], 0, all - 1);
      of_list[list] = place;
      upto.push_back(std::clamp<int64_t>(wanted.typed_data()[place], 0, std::min<int64_t>(length.typed_data()[list], cap)));
    }
  }
};

// Weights of pieces, relative to the greatest score of each, on their way to probabilities.
struct Weights {
  int64_t rows, cap, blocks;
  float* out;
  std::unique_ptr<float[]> scratch;  // of every place and block: greatest score and sum of weights of each row

  Weights(int64_t places, int64_t rows, int64_t cap, float* out)
      : rows(rows), cap(cap), blocks((cap + PIECE - 1) / PIECE), out(out), scratch(new float[places * blocks * rows * 2]) {}

  float* found(int64_t place, int64_t block) const { return scratch.get() + (place * blocks + block) * rows * 2; }
  float* of(int64_t place, int64_t row) const { return out + (place * rows + row) * cap; }

  void put(int64_t place, int64_t first, int64_t n, int64_t row, int64_t many, const float* weights, const float* high,
           const float* total) const {
    float* mine = found(place, first / PIECE);
    for (int64_t r = 0; r < many; ++r) {
      std::copy_n(weights + r * PIECE, n, of(place, row + r) + first);
      mine[row + r] = high[r], mine[rows + row + r] = total[r];
    }
  }

  void finish(int64_t place, int64_t row, int64_t n) const {
    float top = LOW, sum = 0, *mine = of(place, row);
    const int64_t pieces = (n + PIECE - 1) / PIECE;
    for (int64_t i = 0; i < pieces; ++i) top = std::max(top, found(place, i)[row]);
    for (int64_t i = 0; i < pieces; ++i) sum += found(place, i)[rows + row] * std::exp(found(place, i)[row] - top);
    for (int64_t i = 0; i < pieces; ++i) {
      const float share = sum > 0 ? std::exp(found(place, i)[row] - top) / sum : 0;
      for (int64_t at = i * PIECE, end = std::min(at + PIECE, n); at < end; ++at) mine[at] *= share;
    }
    std::fill(mine + n, mine + cap, 0.0f);
  }
};

ffi::Error WatchedAttention(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::AnyBuffer pos,
                            S32<2> start, S32<2> length, S32<2> now, F32<1> bias, S32<1> heads, S32<2> wanted,
                            ffi::Result<F32<5>> out, ffi::Result<F32<4>> lse, ffi::Result<F32<5>> probabilities, int64_t window) {
  if (beyond(start, length, k)) return outside();
  const int64_t cap = probabilities->dimensions()[4], r = out->dimensions()[2] * out->dimensions()[3];
  const auto pieces = pieces_of(length.typed_data(), length.element_count(), k.dimensions()[0]);
  const auto slots_of = [&](const Piece& piece) { return Stretch{start.typed_data()[piece.list] + piece.first}; };
  const Places places(heads, wanted, length, cap);
  const Weights weights(places.upto.size(), r, cap, probabilities->typed_data());
  const auto error = by_types(q, k, [&](const auto& queries, auto type) {
    using T = decltype(type);
    const Where where(pos, start, now, queries, window, biases(bias));
    const auto watch = [&](const Piece& piece, int64_t row, int64_t rows, float* found, const float* high, const float* total) {
      const int64_t place = places.of_list[piece.list];
      const int64_t n = place < 0 ? 0 : std::min(piece.n, places.upto[place] - piece.first);
      if (n <= 0) return;
      float highs[ROWS], totals[ROWS];
      std::copy_n(high, rows, highs), std::copy_n(total, rows, totals);
      if (n < piece.n)  // again without the slots behind: weights relative to their greatest score may all be 0
        weigh(queries.of(piece.list).from(row, rows), data<T>(k), slots_of(piece), n, where.seen(piece.list), row, found, highs,
              totals);
      weights.put(place, piece.first, n, row, rows, found, highs, totals);
    };
    attention(pool, queries, data<T>(k), data<T>(v), pieces, slots_of, where, out->typed_data(), lse->typed_data(), watch);
  });
  each_item(pool, places.upto.size() * r, [&](int64_t i) { weights.finish(i / r, i % r, places.upto[i / r]); });
  return error;
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_attention_with_weights, WatchedAttention,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<S32<2>>().Arg<S32<2>>().Arg<S32<2>>()
                                  .Arg<F32<1>>().Arg<S32<1>>().Arg<S32<2>>().Ret<F32<5>>().Ret<F32<4>>().Ret<F32<5>>()
                                  .Attr<int64_t>("window"));
