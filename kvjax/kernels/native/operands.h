// Operands of the custom calls as the kernels read them.
#pragma once

#include <cmath>
#include <memory>

#include "attention.h"
#include "xla/ffi/api/ffi.h"

namespace kvjax {

namespace ffi = xla::ffi;

template <size_t rank>
using F32 = ffi::Buffer<ffi::F32, rank>;
template <size_t rank>
using S32 = ffi::Buffer<ffi::S32, rank>;
template <size_t rank>
using Bools = ffi::Buffer<ffi::PRED, rank>;

template <class T>
const T* data(const ffi::AnyBuffer& buffer) {
  return static_cast<const T*>(buffer.untyped_data());
}

// body(T()) for the element type.
template <class Body>
ffi::Error by_type(const ffi::AnyBuffer& numbers, const Body& body) {
  switch (numbers.element_type()) {
    case ffi::F32: body(float()); break;
    case ffi::F16: body(Float16()); break;
    case ffi::BF16: body(BFloat16()); break;
    default: return ffi::Error::InvalidArgument("kvjax: numbers must be float32, float16 or bfloat16");
  }
  return ffi::Error::Success();
}

// Whether a region reaches beyond the pool: an error for whoever made it, where a read would end the process.
inline bool beyond(const S32<2>& start, const S32<2>& length, const ffi::AnyBuffer& pool) {
  const int64_t slots = pool.dimensions()[0];
  for (size_t i = 0; i < start.element_count(); ++i) {
    const int64_t first = start.typed_data()[i], n = length.typed_data()[i];
    if (first < 0 || n < 0 || first + n > slots) return true;
  }
  return false;
}
inline ffi::Error outside() { return ffi::Error::InvalidArgument("kvjax: a region begins or ends outside the pool"); }

// Queries [b, h, g, t, d] as rows of Q, converted where they are of another type. A list is what one of the b * h KV heads reads;
// it has g * t rows. Their products are to be multiplied by 1 / sqrt(d).
template <class Q>
struct Queries {
  int64_t heads, lists, t, rows, d;
  float scale;
  const Q* numbers;
  std::unique_ptr<float[]> converted;

  explicit Queries(const ffi::AnyBuffer& q) : numbers(data<Q>(q)) {
    const auto shape = q.dimensions();
    heads = shape[1], lists = shape[0] * heads, t = shape[3], rows = shape[2] * t, d = shape[4];
    scale = 1 / std::sqrt(static_cast<float>(d));
    if constexpr (std::is_same_v<Q, float>) {
      if (q.element_type() == ffi::F32) return;
      converted.reset(new float[lists * rows * d]);
      by_type(q, [&](auto type) { kvjax::numbers(data<decltype(type)>(q), lists * rows * d, converted.get()); });
      numbers = converted.get();
    }
  }
  Rows<Q> of(int64_t list) const { return {numbers + list * rows * d, rows, d, scale}; }
};

// body(queries, T()) for keys of type T: queries stay as they are where the processor multiplies the two as they lie in memory.
template <class Body>
ffi::Error by_types(const ffi::AnyBuffer& q, const ffi::AnyBuffer& k, const Body& body) {
  if constexpr (PAIRS) {
    const bool both = q.element_type() == ffi::BF16 && k.element_type() == ffi::BF16;
    if (both && q.dimensions().back() % Factor<BFloat16>::CHANNELS == 0) {
      body(Queries<BFloat16>(q), BFloat16());
      return ffi::Error::Success();
    }
  }
  const Queries<float> queries(q);
  return by_type(k, [&](auto type) { body(queries, type); });
}

// The biases of the pool's slots; of length 0 where there are none.
inline const float* biases(const F32<1>& bias) { return bias.element_count() ? bias.typed_data() : nullptr; }

// Positions of the pool's slots, uint16 or int32, or of length 0 where they are places in the regions that begin at `start`, and of
// the queries [b, t]; every slot is seen by one query without a window.
struct Where {
  Seen common = {};
  const int32_t* start = nullptr;
  int64_t heads = 1;
  explicit Where(const float* bias) { common.bias = bias; }
  template <class Q>
  Where(const ffi::AnyBuffer& pos, const S32<2>& start, const S32<2>& now, const Queries<Q>& q, int64_t window,
        const float* bias = nullptr)
      : common{q.t == 1 && !window ? Seen::ALL : pos.element_count() ? Seen::STORED : Seen::IN_ORDER,
               pos.untyped_data(), pos.element_type() == ffi::S32, now.typed_data(), q.t, window, bias},
        start(start.typed_data()),
        heads(q.heads) {}
  Seen seen(int64_t list) const {
    Seen mine = common;
    if (mine.kind == Seen::ALL) return mine;
    mine.now += list / heads * mine.t;
    mine.origin = start[list];
    return mine;
  }
};

}  // namespace kvjax
