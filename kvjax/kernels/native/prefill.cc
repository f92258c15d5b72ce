// Causal attention of a prompt's queries and the sums of its columns, as XLA custom calls. Definition: prefill_attention/api.py.
//
// An item is 64 queries of one head, a lane each, over 64 keys at a time with an online softmax: maxima, sums and probabilities
// are registers of lanes. For column sums it is 64 keys, a lane each, and the queries that see them follow. Blocks begin at
// multiples of 64, so that a row's numbers do not depend on what stands beside or behind it.
#include <algorithm>
#include <cmath>
#include <memory>
#include <type_traits>

#include "operands.h"
#include "pair_tile.h"
#include "panel.h"
#include "parallel.h"
#include "query_tile.h"

namespace kvjax {
namespace {

// Positions of query rows and keys: query i stands at offset + i and sees the keys of (position - window, position].
struct Sight {
  int64_t offset, window;  // window: 0 for none

  int64_t first_key(int64_t row) const { return window ? std::max<int64_t>(0, offset + row - window + 1) : 0; }
  // Whether every one of `rows` rows sees every one of `keys` keys.
  bool whole(int64_t row, int64_t rows, int64_t key, int64_t keys) const {
    return key + keys - 1 <= offset + row && key >= first_key(row + rows - 1);
  }
  // Scores of keys, a row each, with the queries from row `first` on, a lane each: none where the query does not see the key.
  void hide(int64_t first, int64_t keys, int64_t key, float* scores) const {
    for (int64_t j = 0; j < keys; ++j, scores += LANES) {
      const int64_t behind = std::clamp<int64_t>(key + j - offset - first, 0, LANES);  // lanes of queries before the key
      std::fill_n(scores, behind, NONE);
      if (!window) continue;
      const int64_t within = std::clamp<int64_t>(key + j + window - offset - first, 0, LANES);
      std::fill(scores + within, scores + LANES, NONE);
    }
  }
  // The same of the scores of queries, a row each from row `first` on, with the keys from `key` on, a lane each.
  void hide_keys(int64_t first, int64_t rows, int64_t key, float* scores) const {
    for (int64_t r = first; r < first + rows; ++r, scores += LANES) {
      std::fill_n(scores, std::clamp<int64_t>(first_key(r) - key, 0, LANES), NONE);
      std::fill(scores + std::clamp<int64_t>(offset + r + 1 - key, 0, LANES), scores + LANES, NONE);
    }
  }
};

template <class Kind, class Q, class T>
void attend(ffi::ThreadPool& pool, const Q* q, const T* k, const T* v, const Shape& shape, const Sight& sight, float* out, float* lse) {
  const int64_t d = shape.d, tiles = (shape.t + LANES - 1) / LANES;
  each_item(pool, shape.lists * shape.g * tiles, [&](int64_t item) {
    const int64_t head = item / tiles, first = item % tiles * LANES, rows = std::min(LANES, shape.t - first);
    const int64_t row = head * shape.t + first, from = head / shape.g * shape.n;
    Kind tile(d, shape.scale());
    tile.begin(q + row * d, rows);
    const int64_t stop = std::min(shape.n, sight.offset + first + rows);
    for (int64_t key = sight.first_key(first) / LANES * LANES; key < stop; key += LANES) {
      const int64_t keys = std::min(LANES, stop - key), at = (from + key) * d;
      tile.see(k + at, v + at, keys, [&](float* scores) {
        if (!sight.whole(first, rows, key, keys)) sight.hide(first, keys, key, scores);
      });
    }
    tile.write(rows, out + row * d, lse + row);
  });
}

template <class Q, class T>
void attend(ffi::ThreadPool& pool, const Q* q, const T* k, const T* v, const Shape& shape, const Sight& sight, float* out, float* lse) {
  if constexpr (PAIRS && std::is_same_v<Q, BFloat16> && std::is_same_v<T, BFloat16>) {
    if (shape.d % 2 == 0) return attend<PairTile>(pool, q, k, v, shape, sight, out, lse);
  }
  attend<Tile>(pool, q, k, v, shape, sight, out, lse);
}

// Adds to the sums of a panel's keys what `rows` queries from row `first` on pay them.
class Columns {
 public:
  Columns(int64_t d) : d_(d), room_(new float[(d + LANES) * LANES]) { std::fill_n(sums_, LANES, 0.0f); }

  float* keys() { return room_.get(); }
  const float* sums() const { return sums_; }

  void see(const float* q, int64_t rows, float scale, const float* lse, const Sight& sight, int64_t first, int64_t key) {
    float* const scores = room_.get() + d_ * LANES;
    products_with_panel<false>(room_.get(), {q, d_, 1}, rows, d_, scores);
    if (!sight.whole(first, rows, key, LANES)) sight.hide_keys(first, rows, key, scores);
    for (int64_t i = 0; i < LANES; i += WIDTH) {
      Vec sum = load(sums_ + i);
      for (int64_t r = 0; r < rows; ++r) sum += exponential(load(scores + r * LANES + i) * scale - lse[r]);
      store(sums_ + i, sum);
    }
  }

 private:
  const int64_t d_;
  const std::unique_ptr<float[]> room_;
  alignas(64) float sums_[LANES];
};

template <class Q, class T>
void sum_columns(ffi::ThreadPool& pool, const Q* q, const T* k, const float* lse, const int32_t* length, int64_t heads,
                 const Shape& shape, const Sight& sight, float* out) {
  const int64_t d = shape.d, tiles = (shape.n + LANES - 1) / LANES;
  each_item(pool, shape.lists * shape.g * tiles, [&](int64_t item) {
    const int64_t head = item / tiles, key = item % tiles * LANES, keys = std::min(LANES, shape.n - key), list = head / shape.g;
    const int64_t counted = std::clamp<int64_t>(length[list / heads] - sight.offset, 0, shape.t);
    Columns columns(d);
    const std::unique_ptr<float[]> room(new float[sizeof(Q) < 4 ? LANES * d : 0]);
    as_panel(k + (list * shape.n + key) * d, keys, d, 1.0f, columns.keys());
    const int64_t last = sight.window ? std::min(counted, key + keys - 1 + sight.window - sight.offset) : counted;
    for (int64_t row = std::max<int64_t>(0, key - sight.offset) / LANES * LANES; row < last; row += LANES) {
      const int64_t rows = std::min(LANES, last - row), at = head * shape.t + row;
      columns.see(as_floats(q + at * d, rows * d, room.get()), rows, shape.scale(), lse + at, sight, row, key);
    }
    std::copy_n(columns.sums(), keys, out + head * shape.n + key);
  });
}

ffi::Error Prefill(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, S32<0> offset,
                   ffi::Result<F32<5>> out, ffi::Result<F32<4>> lse, int64_t window) {
  const Shape shape = shape_of(q, k);
  const Sight sight{*offset.typed_data(), window};
  if (sight.offset < 0 || sight.offset + shape.t > shape.n) return ffi::Error::InvalidArgument("kvjax: queries beyond the keys");
  return by_both_types(q, k, [&](auto of_q, auto of_k) {
    using Q = decltype(of_q);
    using T = decltype(of_k);
    attend(pool, data<Q>(q), data<T>(k), data<T>(v), shape, sight, out->typed_data(), lse->typed_data());
  });
}

ffi::Error ColumnSums(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, F32<4> lse, S32<0> offset, S32<1> length,
                      ffi::Result<F32<4>> out, int64_t window) {
  const Shape shape = shape_of(q, k);
  const Sight sight{*offset.typed_data(), window};
  return by_both_types(q, k, [&](auto of_q, auto of_k) {
    using Q = decltype(of_q);
    using T = decltype(of_k);
    sum_columns(pool, data<Q>(q), data<T>(k), lse.typed_data(), length.typed_data(), q.dimensions()[1], shape, sight,
                out->typed_data());
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
XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_column_sums, ColumnSums,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<F32<4>>()
                                  .Arg<S32<0>>()
                                  .Arg<S32<1>>()
                                  .Ret<F32<4>>()
                                  .Attr<int64_t>("window"));
