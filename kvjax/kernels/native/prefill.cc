// Causal attention of a prompt's queries, with or without the sums of its columns, as XLA custom calls. Definition:
// prefill_attention/api.py.
//
// A tile is 64 queries of one head, a lane each, over 64 keys at a time with an online softmax: maxima, sums and probabilities
// are registers of lanes. Tiles begin at multiples of 64, so that a row's numbers do not depend on what stands beside or behind it.
// Probabilities whose columns are summed wait for the denominators of their rows: one pass over the scores does both.
#include <algorithm>
#include <memory>
#include <type_traits>

#include "column_strip.h"
#include "pair_tile.h"
#include "parallel.h"
#include "sight.h"

namespace kvjax {
namespace {

// Query tiles of a head whose columns are summed one after the other: their order is the same however many threads there are.
constexpr int64_t TOGETHER = 4;

// A prompt's operands and results.
template <class Q, class T>
struct Prompt {
  const Q* q;
  const T *k, *v;
  Shape shape;
  Sight sight;
  float *out, *lse;

  int64_t tiles() const { return (shape.t + LANES - 1) / LANES; }
  int64_t heads() const { return shape.lists * shape.g; }
  int64_t rows(int64_t index) const { return std::min(LANES, shape.t - index * LANES); }
  int64_t first_key_tile(int64_t index) const { return sight.first_key(index * LANES) / LANES; }
  // Behind the last key that is seen.
  int64_t stop(int64_t index) const { return std::min(shape.n, sight.offset + index * LANES + rows(index)); }
  int64_t key_tiles(int64_t index) const { return (stop(index) + LANES - 1) / LANES; }
};

// Tile `index` of a head's queries; with a strip its probabilities are left there.
template <class Kind, class Q, class T>
void attend_tile(const Prompt<Q, T>& of, int64_t head, int64_t index, Strip* strip) {
  const int64_t d = of.shape.d, first = index * LANES, rows = of.rows(index), stop = of.stop(index);
  const int64_t row = head * of.shape.t + first, from = head / of.shape.g * of.shape.n;
  Kind tile(d, of.shape.scale());
  tile.begin(of.q + row * d, rows);
  for (int64_t i = of.first_key_tile(index); i < of.key_tiles(index); ++i) {
    const int64_t key = i * LANES, keys = std::min(LANES, stop - key), at = (from + key) * d;
    if (strip) tile.leave(strip->scores(i));
    tile.see(of.k + at, of.v + at, keys, [&](float* scores) {
      if (!of.sight.whole(first, rows, key, keys)) of.sight.hide(first, keys, key, scores);
    });
    if (strip) strip->note(i, keys, tile.high());
  }
  tile.write(rows, of.out + row * d, of.lse + row);
}

template <class Kind, class Q, class T>
void attend(ffi::ThreadPool& pool, const Prompt<Q, T>& of) {
  const int64_t tiles = of.tiles();
  each_item(pool, of.heads() * tiles, [&](int64_t item) { attend_tile<Kind>(of, item / tiles, item % tiles, nullptr); });
}

// The same, and the sums of columns [heads, n] of the rows before `length`, one a row of the batch of `heads` query heads.
template <class Kind, class Q, class T>
void attend_and_sum(ffi::ThreadPool& pool, const Prompt<Q, T>& of, const int32_t* length, int64_t heads, float* sums) {
  const int64_t tiles = of.tiles(), parts = (tiles + TOGETHER - 1) / TOGETHER, n = of.shape.n;
  const int64_t width = (n + LANES - 1) / LANES * LANES;
  const std::unique_ptr<float[]> part_sums(new float[of.heads() * parts * width]());
  each_item(pool, of.heads() * parts, [&](int64_t item) {
    const int64_t head = item / parts, begin = item % parts * TOGETHER, end = std::min(tiles, begin + TOGETHER);
    const int64_t counted = length[head / heads] - of.sight.offset;
    Strip strip(of.key_tiles(end - 1));
    for (int64_t index = begin; index < end; ++index) {
      attend_tile<Kind>(of, head, index, &strip);
      float lse[LANES];
      const int64_t real = std::clamp<int64_t>(counted - index * LANES, 0, of.rows(index));
      std::copy_n(of.lse + head * of.shape.t + index * LANES, real, lse);
      std::fill(lse + real, lse + LANES, -NONE);
      const int64_t from = of.first_key_tile(index);
      if (real) strip.pay(from, of.key_tiles(index), lse, part_sums.get() + item * width + from * LANES);
    }
  });
  each_item(pool, of.heads(), [&](int64_t head) {
    float* const to = sums + head * n;
    std::copy_n(part_sums.get() + head * parts * width, n, to);
    for (int64_t part = 1; part < parts; ++part) {
      const float* const more = part_sums.get() + (head * parts + part) * width;
      for (int64_t key = 0; key < n; ++key) to[key] += more[key];
    }
  });
}

// run(kind) with the kind of tile that operands are read by.
template <class Q, class T, class Run>
void by_tile(int64_t d, const Run& run) {
  if constexpr (PAIRS && std::is_same_v<Q, BFloat16> && std::is_same_v<T, BFloat16>) {
    if (d % 2 == 0) return run(static_cast<PairTile*>(nullptr));
  }
  run(static_cast<Tile*>(nullptr));
}

// run(prompt, kind) for operands of any types.
template <class Run>
ffi::Error by_prompt(const ffi::AnyBuffer& q, const ffi::AnyBuffer& k, const ffi::AnyBuffer& v, const Sight& sight, float* out,
                     float* lse, const Run& run) {
  const Shape shape = shape_of(q, k);
  if (sight.offset < 0 || sight.offset + shape.t > shape.n) return ffi::Error::InvalidArgument("kvjax: queries beyond the keys");
  return by_both_types(q, k, [&](auto of_q, auto of_k) {
    using Q = decltype(of_q);
    using T = decltype(of_k);
    const Prompt<Q, T> prompt{data<Q>(q), data<T>(k), data<T>(v), shape, sight, out, lse};
    by_tile<Q, T>(shape.d, [&](auto* kind) { run(prompt, kind); });
  });
}

ffi::Error Prefill(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, S32<0> offset,
                   ffi::Result<F32<5>> out, ffi::Result<F32<4>> lse, int64_t window) {
  const Sight sight{*offset.typed_data(), window};
  return by_prompt(q, k, v, sight, out->typed_data(), lse->typed_data(), [&](const auto& prompt, auto* kind) {
    attend<std::remove_pointer_t<decltype(kind)>>(pool, prompt);
  });
}

ffi::Error PrefillAndSums(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, S32<0> offset, S32<1> length,
                          ffi::Result<F32<5>> out, ffi::Result<F32<4>> lse, ffi::Result<F32<4>> sums, int64_t window) {
  const Sight sight{*offset.typed_data(), window};
  const int64_t heads = q.dimensions()[1] * q.dimensions()[2];
  return by_prompt(q, k, v, sight, out->typed_data(), lse->typed_data(), [&](const auto& prompt, auto* kind) {
    attend_and_sum<std::remove_pointer_t<decltype(kind)>>(pool, prompt, length.typed_data(), heads, sums->typed_data());
  });
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_prefill_attention, Prefill,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<S32<0>>()
                                  .Ret<F32<5>>()
                                  .Ret<F32<4>>()
                                  .Attr<int64_t>("window"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_attention_and_column_sums, PrefillAndSums,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<S32<0>>()
                                  .Arg<S32<1>>()
                                  .Ret<F32<5>>()
                                  .Ret<F32<4>>()
                                  .Ret<F32<4>>()
                                  .Attr<int64_t>("window"));
