// Rows times a weight matrix as an XLA custom call. Definition: linear/api.py.
#include "attention.h"
#include "operands.h"
#include "parallel.h"

namespace kvjax {
namespace {

// Up to this many rows a product is bound by memory, and weights are read as they lie there; beyond, by arithmetic.
constexpr int64_t FEW_ROWS = 4;
// Rows and weights multiplied side by side: their sums fill the registers, 24 of 32 or 8 of 16.
constexpr int ROWS = WIDTH == 16 ? 6 : 2, WEIGHTS = 4;
// Channels of ROWS rows that the first-level cache holds beside the weights.
constexpr int64_t CHANNELS = 1024;
// Bytes, and outputs at least, of the weights of one item: the second-level cache holds them until all rows have had them.
constexpr int64_t ITEM = 1 << 16, OUTPUTS = 16;

// out[r * stride + j] += x_r . w_j over `width` channels for R rows and WEIGHTS weights.
template <int R, class T>
inline void tile(const float* x, const T* w, int64_t d, int64_t width, float* out, int64_t stride) {
  Vec added[R][WEIGHTS] = {};
  for (int64_t c = 0; c < width; c += WIDTH) {
    Vec weights[WEIGHTS];
    for (int j = 0; j < WEIGHTS; ++j) weights[j] = held(load(w + j * d + c));
    for (int r = 0; r < R; ++r) {
      const Vec row = held(load(x + r * d + c));
      for (int j = 0; j < WEIGHTS; ++j) added[r][j] += row * weights[j];
    }
  }
  for (int r = 0; r < R; ++r) {
    const Quad found = unaligned<Quad>(out + r * stride) + sums(added[r][0], added[r][1], added[r][2], added[r][3]);
    std::memcpy(out + r * stride, &found, sizeof(found));
  }
}

// The next weights on their way while these are multiplied: four streams at once are not looked ahead along.
template <class T>
inline void fetch(const T* w, int64_t d, int64_t width) {
  for (int j = 0; j < WEIGHTS; ++j)
    for (int64_t c = 0; c < width; c += 64 / int64_t(sizeof(T))) __builtin_prefetch(w + j * d + c);
}

template <int R, class T>
void block(const float* x, const T* w, int64_t d, int64_t width, int64_t n, bool first, float* out, int64_t stride) {
  for (int64_t o = 0; o < n; o += WEIGHTS) {
    if (first && o + WEIGHTS < n) fetch(w + (o + WEIGHTS) * d, d, width);
    tile<R>(x, w + o * d, d, width, out + o, stride);
  }
}

// Many rows times n weights, a multiple of WEIGHTS; out is zero before.
template <class T>
void many_rows(const float* x, int64_t rows, int64_t d, const T* w, int64_t n, float* out, int64_t stride) {
  for (int64_t c = 0; c < d; c += CHANNELS) {
    const int64_t width = std::min(CHANNELS, d - c);
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS) block<ROWS>(x + r * d + c, w + c, d, width, n, r == 0, out + r * stride, stride);
    for (; r + 2 <= rows; r += 2) block<2>(x + r * d + c, w + c, d, width, n, r == 0, out + r * stride, stride);
    if (r < rows) block<1>(x + r * d + c, w + c, d, width, n, r == 0, out + r * stride, stride);
  }
}

template <class T>
void few_rows(const float* x, int64_t rows, int64_t d, const T* w, int64_t n, float* out, int64_t stride) {
  by_rows(rows, [&](auto many, int64_t row) {
    products<decltype(many)::value>(x + row * d, d, w, Stretch{0}, n, out + row * stride, stride);
  });
}

template <class T>
void item(const float* x, int64_t rows, int64_t d, const T* w, int64_t n, float* out, int64_t stride) {
  const int64_t tiled = rows > FEW_ROWS ? n - n % WEIGHTS : 0;
  for (int64_t r = 0; r < rows && tiled; ++r) std::fill_n(out + r * stride, tiled, 0.0f);
  if (tiled) many_rows(x, rows, d, w, tiled, out, stride);
  if (tiled < n) few_rows(x, rows, d, w + tiled * d, n - tiled, out + tiled, stride);
}

ffi::Error Linear(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::Result<F32<2>> out) {
  const int64_t rows = x.dimensions()[0], d = x.dimensions()[1], outputs = weight.dimensions()[0];
  std::unique_ptr<float[]> wide(new float[rows * d]);
  const auto error = by_type(x, [&](auto type) { numbers(data<decltype(type)>(x), rows * d, wide.get()); });
  if (error.failure()) return error;
  return by_type(weight, [&](auto type) {
    const auto* weights = data<decltype(type)>(weight);
    const int64_t some = std::max(OUTPUTS, ITEM / (d * int64_t(sizeof(type))) / WEIGHTS * WEIGHTS);
    each_item(pool, (outputs + some - 1) / some, [&](int64_t i) {
      const int64_t first = i * some, n = std::min(some, outputs - first);
      item(wide.get(), rows, d, weights + first * d, n, out->typed_data() + first, outputs);
    });
  });
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_linear, Linear,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<F32<2>>());
