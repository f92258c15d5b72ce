// Weighted sums of values as an XLA custom call. Definition: weighted_values/api.py.
#include "attention.h"
#include "operands.h"
#include "parallel.h"

namespace kvjax {
namespace {

// Slots whose weighted values one item adds up; items are added up in order.
constexpr int64_t SPAN = 8 * PIECE;

// The slots of a piece that some row gives weight, and the rows' weights of those.
struct Weighed {
  int32_t slots[PIECE];
  std::unique_ptr<float[]> weights;
  int64_t n = 0;

  explicit Weighed(int64_t rows) : weights(new float[rows * PIECE]) {}
  void read(const float* from, int64_t rows, int64_t stride, int64_t width, int64_t first) {
    bool some[PIECE] = {};
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < width; ++i) some[i] |= from[r * stride + i] > 0;
    n = 0;
    for (int64_t i = 0; i < width; ++i) {
      slots[n] = int32_t(first + i);
      n += some[i];
    }
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < n; ++i) weights[r * PIECE + i] = from[r * stride + slots[i] - first];
  }
};

template <class T>
void span(const float* weights, int64_t rows, int64_t stride, int64_t width, int64_t first, const T* v, int64_t limit, int64_t d,
          float* out) {
  Weighed piece(rows);
  std::unique_ptr<float[]> part(new float[rows * d]);
  std::fill_n(out, rows * d, 0.0f);
  for (int64_t at = 0; at < width; at += PIECE) {
    piece.read(weights + at, rows, stride, std::min(PIECE, width - at), first + at);
    if (piece.n == 0) continue;
    by_readings(rows, [&](int64_t some, int64_t row) {
      weighted(piece.weights.get() + row * PIECE, some, d, v, Listed{piece.slots, limit}, piece.n, part.get() + row * d);
    });
    for (int64_t i = 0; i < rows * d; ++i) out[i] += part[i];
  }
}

ffi::Error WeightedValues(ffi::ThreadPool pool, ffi::AnyBuffer v, S32<2> start, F32<5> weights, ffi::Result<F32<5>> out) {
  const auto shape = weights.dimensions();
  const int64_t lists = shape[0] * shape[1], rows = shape[2] * shape[3], n = shape[4];
  const int64_t limit = v.dimensions()[0], d = v.dimensions()[1], spans = (n + SPAN - 1) / SPAN;
  std::unique_ptr<float[]> parts(new float[lists * spans * rows * d]);
  const auto error = by_type(v, [&](auto type) {
    const auto* values = data<decltype(type)>(v);
    each_item(pool, lists * spans, [&](int64_t i) {
      const int64_t list = i / spans, first = i % spans * SPAN;
      span(weights.typed_data() + list * rows * n + first, rows, n, std::min(SPAN, n - first),
           start.typed_data()[list] + first, values, limit, d, parts.get() + i * rows * d);
    });
  });
  for (int64_t list = 0; list < lists; ++list) {
    float* sum = out->typed_data() + list * rows * d;
    std::fill_n(sum, rows * d, 0.0f);
    for (int64_t i = 0; i < spans * rows * d; ++i) sum[i % (rows * d)] += parts[list * spans * rows * d + i];
  }
  return error;
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_weighted_values, WeightedValues,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<S32<2>>().Arg<F32<5>>()
                                  .Ret<F32<5>>());
