// The sums of the columns of a prompt's attention, as an XLA custom call. Definition: prefill_attention/api.py.
//
// An item is 64 keys of one query head, a lane each, and the queries that see them follow, 64 at a time from multiples of 64.
#include <algorithm>
#include <memory>

#include "parallel.h"
#include "sight.h"

namespace kvjax {
namespace {

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
