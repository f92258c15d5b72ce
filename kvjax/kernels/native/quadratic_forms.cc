// Quadratic forms of keys, as an XLA custom call. Definition: quadratic_forms/api.py.
//
// An item is 64 keys of a KV head, a lane each, and all matrices of that head: their rows meet the keys, and each product of a row
// meets the keys' number of that row.
#include <algorithm>
#include <memory>

#include "operands.h"
#include "panel.h"
#include "parallel.h"

namespace kvjax {
namespace {

struct Forms {
  int64_t lists, g, n, d;  // KV heads of all rows, matrices of each, keys, channels
  const float *a, *b;

  int64_t blocks() const { return (n + LANES - 1) / LANES; }
};

// out[lane] = sum_c (products[c][lane] + b[c]) keys[c][lane].
void add_up(const float* products, const float* b, const float* keys, int64_t d, float* out) {
  for (int64_t i = 0; i < LANES; i += WIDTH) {
    Vec sum = {};
    for (int64_t c = 0; c < d; ++c) sum += (load(products + c * LANES + i) + b[c]) * load(keys + c * LANES + i);
    store(out + i, sum);
  }
}

template <class T>
void meet(const Forms& of, const T* k, int64_t list, int64_t key, float* out) {
  const int64_t keys = std::min(LANES, of.n - key), d = of.d, rows = of.g * d;
  const std::unique_ptr<float[]> room(new float[(d + rows) * LANES]);
  float* const products = room.get() + d * LANES;
  as_panel(k + (list * of.n + key) * d, keys, d, 1.0f, room.get());
  products_with_panel<false>(room.get(), {of.a + list * rows * d, d, 1}, rows, d, products);
  for (int64_t i = 0; i < of.g; ++i) {
    float found[LANES];
    add_up(products + i * d * LANES, of.b + (list * of.g + i) * d, room.get(), d, found);
    std::copy_n(found, keys, out + (list * of.g + i) * of.n + key);
  }
}

ffi::Error QuadraticForms(ffi::ThreadPool pool, ffi::AnyBuffer k, F32<5> a, F32<4> b, ffi::Result<F32<4>> out) {
  const auto of = k.dimensions();
  const Forms forms{of[0] * of[1], a.dimensions()[2], of[2], of[3], a.typed_data(), b.typed_data()};
  return by_type(k, [&](auto type) {
    each_item(pool, forms.lists * forms.blocks(), [&](int64_t item) {
      const int64_t list = item / forms.blocks(), key = item % forms.blocks() * LANES;
      meet(forms, data<decltype(type)>(k), list, key, out->typed_data());
    });
  });
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_quadratic_forms, QuadraticForms,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<F32<5>>()
                                  .Arg<F32<4>>()
                                  .Ret<F32<4>>());
