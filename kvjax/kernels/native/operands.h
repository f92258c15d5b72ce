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

// Queries [b, h, g, t, d] as float32 rows scaled by 1 / sqrt(d). A list is what one of the b * h KV heads reads; it has g * t rows.
struct Queries {
  int64_t heads, lists, t, rows, d;
  std::unique_ptr<float[]> scaled;

  explicit Queries(const ffi::AnyBuffer& q) {
    const auto shape = q.dimensions();
    heads = shape[1], lists = shape[0] * heads, t = shape[3], rows = shape[2] * t, d = shape[4];
    scaled.reset(new float[lists * rows * d]);
    const float scale = 1 / std::sqrt(static_cast<float>(d));
    by_type(q, [&](auto type) {
      numbers(data<decltype(type)>(q), lists * rows * d, scaled.get());
    });
    for (int64_t i = 0; i < lists * rows * d; ++i) scaled[i] *= scale;
  }
  const float* of(int64_t list) const { return scaled.get() + list * rows * d; }
};

// Positions of the pool's slots, uint16 or int32, and of the queries [b, t]; every slot is seen by one query without a window.
struct Where {
  Seen common = {};
  int64_t heads = 1;
  Where() = default;
  Where(const ffi::AnyBuffer& pos, const S32<2>& now, const Queries& q, int64_t window)
      : common{q.t > 1 || window ? pos.untyped_data() : nullptr, pos.element_type() == ffi::S32, now.typed_data(), q.t, window},
        heads(q.heads) {}
  Seen seen(int64_t list) const {
    Seen mine = common;
    mine.now += list / heads * mine.t;
    return mine;
  }
};

}  // namespace kvjax
