// Rows times a weight matrix as an XLA custom call. Definition: linear/api.py.
#include "products.h"
#include "blocks.h"
#include "operands.h"
#include "parallel.h"

namespace kvjax {
namespace {

// Up to this many rows (native.py's too) a product is bound by memory, and weights are multiplied a register at a time, as they lie
// there. Beyond, by arithmetic: a lane is a row then, and each weight is multiplied with registers of rows.
constexpr int64_t FEW_ROWS = 8;
// Beyond these rows are multiplied a block at a time.
constexpr int64_t MOST_ROWS = 64;
// Registers of rows side by side at most, and the weights they are multiplied with: their sums are most of all registers.
constexpr int MOST = WIDTH == 16 ? 4 : 2;
constexpr int weights_beside(int vectors) { return vectors == 4 || WIDTH < 16 ? 6 : 8; }
// Channels, a divisor of all, after which the next weights are sent for: a cache line of float32.
constexpr int64_t CHANNELS = 16;
// Bytes of the weights of one item: the second-level cache holds them until all rows have had them.
constexpr int64_t ITEM = 1 << 16;

// Rows as lanes: channel after channel, whole registers of rows. FEW_ROWS are left out, and so are as many beyond the last whole
// register; more of them fill one up with zeros.
struct Lanes {
  int64_t rows, d, lanes;
  std::unique_ptr<float[]> numbers;

  Lanes(const float* x, int64_t count, int64_t d)
      : rows(count <= FEW_ROWS ? 0 : count % WIDTH > FEW_ROWS ? count : count - count % WIDTH), d(d) {
    lanes = (rows + WIDTH - 1) / WIDTH * WIDTH;
    numbers.reset(new float[d * lanes]());
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < d; ++c) numbers[c * lanes + r] = x[r * d + c];
  }
};

// sum_c x_c w_jc of V registers of rows and J weights, d apart -> out[row * stride + j]; `later` weights are sent for meanwhile.
template <int V, int J, class T>
inline void block(const Lanes& x, int64_t row, const float* w, const T* later, float* out, int64_t stride) {
  Vec added[J][V] = {};
  const float* from = x.numbers.get() + row;
  for (int64_t c = 0; c < x.d; c += CHANNELS) {
    if (later)
      for (int j = 0; j < J; ++j) __builtin_prefetch(later + j * x.d + c);
#pragma GCC unroll 4
    for (int64_t i = c; i < c + CHANNELS; ++i, from += x.lanes) {
      Vec rows[V];
      for (int v = 0; v < V; ++v) rows[v] = held(load(from + v * WIDTH));
      for (int j = 0; j < J; ++j) {
        const Vec weight = all(w[j * x.d + i]);
        for (int v = 0; v < V; ++v) added[j][v] += weight * rows[v];
      }
    }
  }
  for (int v = 0; v < V; ++v)
    for (int lane = 0; lane < WIDTH && row + v * WIDTH + lane < x.rows; ++lane)
      for (int j = 0; j < J; ++j) out[(row + v * WIDTH + lane) * stride + j] = added[j][v][lane];
}

template <int V, int J, class T>
void outputs(const Lanes& x, int64_t row, const T* w, int64_t n, float* room, float* out, int64_t stride) {
  int64_t o = 0;
  for (; o + J <= n; o += J) {
    const T* later = row == 0 && o + 2 * J <= n ? w + (o + J) * x.d : nullptr;
    block<V, J>(x, row, as_floats(w + o * x.d, J * x.d, room), later, out + o, stride);
  }
  for (; o < n; ++o) block<V, 1, T>(x, row, as_floats(w + o * x.d, x.d, room), nullptr, out + o, stride);
}

template <int V, class T>
void rows_from(const Lanes& x, int64_t row, const T* w, int64_t n, float* room, float* out, int64_t stride) {
  if constexpr (V > 1) {
    if (row + V * WIDTH > x.lanes) return rows_from<V - 1>(x, row, w, n, room, out, stride);
  }
  if (row + V * WIDTH > x.lanes) return;
  outputs<V, weights_beside(V)>(x, row, w, n, room, out, stride);
  rows_from<V>(x, row + V * WIDTH, w, n, room, out, stride);
}

// All rows times n weights, numbers in float32.
template <class T>
void item(const Rows<float>& x, const Lanes& lanes, const T* w, int64_t n, float* out, int64_t stride) {
  if (lanes.rows) {
    std::unique_ptr<float[]> room(new float[sizeof(T) < 4 ? 8 * lanes.d : 0]);
    rows_from<MOST>(lanes, 0, w, n, room.get(), out, stride);
  }
  products(x.from(lanes.rows, x.n - lanes.rows), w, Stretch{0}, n, out + lanes.rows * stride, stride);
}

// multiply(weights, how many, where to) for all of them, shared out over the threads.
template <class T, class Multiply>
void by_items(ffi::ThreadPool pool, const ffi::AnyBuffer& weight, float* out, const Multiply& multiply) {
  const int64_t outputs = weight.dimensions()[0], d = weight.dimensions()[1];
  const int64_t some = std::max<int64_t>(24, ITEM / (d * int64_t(sizeof(T))) / 24 * 24);  // of 8 and of 6
  each_item(pool, (outputs + some - 1) / some, [&](int64_t i) {
    const int64_t first = i * some;
    multiply(data<T>(weight) + first * d, std::min(some, outputs - first), out + first);
  });
}

ffi::Error Linear(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::Result<F32<2>> out) {
  const int64_t rows = x.dimensions()[0], d = x.dimensions()[1], stride = weight.dimensions()[0];
  if constexpr (PAIRS) {
    if (x.element_type() == ffi::BF16 && weight.element_type() == ffi::BF16 && d % Factor<BFloat16>::CHANNELS == 0) {
#if defined(__AVX512BF16__)
      if (rows > MOST_ROWS) {
        multiplied<Pairs>(pool, data<BFloat16>(x), rows, d, data<BFloat16>(weight), stride, out->typed_data());
        return ffi::Error::Success();
      }
#endif
      const Rows<BFloat16> narrow{data<BFloat16>(x), rows, d, 1};
      const auto multiply = [&](const BFloat16* w, int64_t n, float* to) { products(narrow, w, Stretch{0}, n, to, stride); };
      by_items<BFloat16>(pool, weight, out->typed_data(), multiply);
      return ffi::Error::Success();
    }
  }
  std::unique_ptr<float[]> room;
  const float* wide = nullptr;
  const auto error = by_type(x, [&](auto type) {
    using T = decltype(type);
    if (sizeof(T) < 4) room.reset(new float[rows * d]);
    wide = as_floats(data<T>(x), rows * d, room.get());
  });
  if (error.failure()) return error;
  if (rows > MOST_ROWS)
    return by_type(weight, [&](auto type) {
      multiplied<Single>(pool, wide, rows, d, data<decltype(type)>(weight), stride, out->typed_data());
    });
  const Lanes lanes(wide, rows, d);
  return by_type(weight, [&](auto type) {
    const auto multiply = [&](const auto* w, int64_t n, float* to) { item({wide, rows, d, 1}, lanes, w, n, to, stride); };
    by_items<decltype(type)>(pool, weight, out->typed_data(), multiply);
  });
}

// Of float32 numbers, or of bfloat16 where they are multiplied in pairs.
ffi::Error Gated(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer gate, ffi::AnyBuffer up, ffi::Result<F32<2>> out) {
  const int64_t rows = x.dimensions()[0], d = x.dimensions()[1], outputs = gate.dimensions()[0];
#if defined(__AVX512BF16__)
  if (x.element_type() == ffi::BF16 && d % 2 == 0) {
    gated<Pairs>(pool, data<BFloat16>(x), rows, d, data<BFloat16>(gate), data<BFloat16>(up), outputs, out->typed_data());
    return ffi::Error::Success();
  }
#endif
  if (x.element_type() != ffi::F32) return ffi::Error::InvalidArgument("kvjax: numbers must be float32");
  gated<Single>(pool, data<float>(x), rows, d, data<float>(gate), data<float>(up), outputs, out->typed_data());
  return ffi::Error::Success();
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

// Whether prompts' rows of bfloat16 are multiplied in pairs.
extern "C" int kvjax_has_pairs() { return PAIRS; }

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_linear, Linear,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<F32<2>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_gated_linear, Gated,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<F32<2>>());
