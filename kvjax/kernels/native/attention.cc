// Attention over lists of slots, and scores of regions, as XLA custom calls. Definitions: ragged_attention/api.py.
#include "pieces.h"

namespace kvjax {
namespace {

ffi::Error RaggedAttention(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::AnyBuffer pos,
                           S32<2> start, S32<2> length, S32<2> now, F32<1> bias, ffi::Result<F32<5>> out,
                           ffi::Result<F32<4>> lse, int64_t window) {
  if (beyond(start, length, k)) return outside();
  const auto pieces = pieces_of(length.typed_data(), length.element_count(), k.dimensions()[0]);
  const auto slots_of = [&](const Piece& piece) { return Stretch{start.typed_data()[piece.list] + piece.first}; };
  return by_types(q, k, [&](const auto& queries, auto type) {
    using T = decltype(type);
    const Where where(pos, start, now, queries, window, biases(bias));
    attention(pool, queries, data<T>(k), data<T>(v), pieces, slots_of, where, out->typed_data(), lse->typed_data());
  });
}

ffi::Error GatherAttention(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, S32<3> slots, S32<2> count,
                           F32<1> bias, ffi::Result<F32<5>> out, ffi::Result<F32<4>> lse) {
  const int64_t most = slots.dimensions()[2], limit = k.dimensions()[0];
  const auto pieces = pieces_of(count.typed_data(), count.element_count(), most);
  const auto slots_of = [&](const Piece& piece) {
    return Listed{slots.typed_data() + piece.list * most + piece.first, limit};
  };
  return by_types(q, k, [&](const auto& queries, auto type) {
    using T = decltype(type);
    const Where where(biases(bias));
    attention(pool, queries, data<T>(k), data<T>(v), pieces, slots_of, where, out->typed_data(), lse->typed_data());
  });
}

ffi::Error RaggedScores(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer pos, S32<2> start, S32<2> length,
                        S32<2> now, F32<1> bias, ffi::Result<F32<5>> out, int64_t window) {
  if (beyond(start, length, k)) return outside();
  const int64_t cap = out->dimensions()[4], blocks = (cap + PIECE - 1) / PIECE;
  return by_types(q, k, [&](const auto& queries, auto type) {
    const Where where(pos, start, now, queries, window, biases(bias));
    const auto* keys = data<decltype(type)>(k);
    const int64_t r = queries.rows;
    each_item(pool, queries.lists * blocks, [&](int64_t i) {
      const int64_t list = i / blocks, first = i % blocks * PIECE, width = std::min(PIECE, cap - first);
      const int64_t n = std::clamp<int64_t>(length.typed_data()[list] - first, 0, width);
      const Stretch slots{start.typed_data()[list] + first};
      float* mine = out->typed_data() + list * r * cap + first;
      products(queries.of(list), keys, slots, n, mine, cap);
      adjust(where.seen(list), slots, n, 0, r, mine, cap);
      for (int64_t row = 0; row < r; ++row) std::fill(mine + row * cap + n, mine + row * cap + width, NOTHING);
    });
  });
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_ragged_attention, RaggedAttention,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<S32<2>>().Arg<S32<2>>().Arg<S32<2>>()
                                  .Arg<F32<1>>().Ret<F32<5>>().Ret<F32<4>>().Attr<int64_t>("window"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_gather_attention, GatherAttention,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>().Arg<S32<3>>().Arg<S32<2>>().Arg<F32<1>>().Ret<F32<5>>().Ret<F32<4>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_ragged_scores, RaggedScores,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>().Arg<S32<2>>().Arg<S32<2>>().Arg<S32<2>>().Arg<F32<1>>()
                                  .Ret<F32<5>>().Attr<int64_t>("window"));
