// Softmax of rows, as an XLA custom call. Definition: softmax/api.py.
#include "softmax.h"

#include "operands.h"
#include "parallel.h"

namespace kvjax {
namespace {

ffi::Error Softmax(ffi::ThreadPool pool, F32<2> scores, ffi::Result<F32<2>> out) {
  const int64_t n = scores.dimensions()[1];
  each_item(pool, scores.dimensions()[0], [&](int64_t row) {
    probabilities(scores.typed_data() + row * n, n, out->typed_data() + row * n);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_softmax, Softmax, ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<F32<2>>().Ret<F32<2>>());
