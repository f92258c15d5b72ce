// Attention over lists of slots, and scores of regions, as XLA custom calls. Definitions: ragged_attention/api.py.
#include <vector>

#include "attention.h"
#include "operands.h"
#include "parallel.h"

namespace kvjax {
namespace {

// A piece of a list: which list, its first slot there, its slots.
struct Piece {
  int64_t list, first, n;
};

std::vector<Piece> pieces_of(const int32_t* length, int64_t lists, int64_t most) {
  std::vector<Piece> pieces;
  for (int64_t list = 0; list < lists; ++list) {
    const int64_t n = std::min<int64_t>(length[list], most);
    for (int64_t first = 0; first < n; first += PIECE) pieces.push_back({list, first, std::min(PIECE, n - first)});
  }
  return pieces;
}

// A list's pieces put together, one after the other: out = sum e^(high - top) out_i / sum e^(high - top) total_i.
void combine(const Piece* begin, const Piece* end, const float* high, const float* total, const float* part, int64_t r, int64_t d,
             float* out, float* lse) {
  for (int64_t row = 0; row < r; ++row) {
    float top = LOW, sum = 0;
    for (int64_t i = 0; i < end - begin; ++i) top = std::max(top, high[i * r + row]);
    std::fill_n(out + row * d, d, 0.0f);
    for (int64_t i = 0; i < end - begin; ++i) {
      const float share = std::exp(high[i * r + row] - top);
      sum += total[i * r + row] * share;
      for (int64_t c = 0; c < d; ++c) out[row * d + c] += part[(i * r + row) * d + c] * share;
    }
    const float inverse = sum > 0 ? 1 / sum : 0;
    for (int64_t c = 0; c < d; ++c) out[row * d + c] *= inverse;
    lse[row] = sum > 0 ? top + std::log(sum) : NOTHING;
  }
}

template <class T, class SlotsOf>
void attention(ffi::ThreadPool pool, const Queries& q, const T* k, const T* v, const std::vector<Piece>& pieces,
               const SlotsOf& slots_of, const Where& where, float* out, float* lse) {
  const int64_t r = q.rows, d = q.d, items = pieces.size();
  std::unique_ptr<float[]> scratch(new float[items * r * (d + 2)]);
  float *high = scratch.get(), *total = high + items * r, *part = total + items * r;
  each_item(pool, items, [&](int64_t i) {
    const Piece& piece = pieces[i];
    const auto slots = slots_of(piece);
    const Seen seen = where.seen(piece.list);
    by_readings(r, [&](int64_t rows, int64_t row) {
      const int64_t at = i * r + row;
      attend(q.of(piece.list) + row * d, rows, d, k, v, slots, piece.n, seen, row, high + at, total + at, part + at * d);
    });
  });
  for (int64_t list = 0, i = 0; list < q.lists; ++list) {
    const int64_t begin = i;
    while (i < items && pieces[i].list == list) ++i;
    combine(pieces.data() + begin, pieces.data() + i, high + begin * r, total + begin * r, part + begin * r * d, r, d,
            out + list * r * d, lse + list * r);
  }
}

ffi::Error RaggedAttention(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, ffi::AnyBuffer pos,
                           S32<2> start, S32<2> length, S32<2> now, ffi::Result<F32<5>> out, ffi::Result<F32<4>> lse,
                           int64_t window) {
  const Queries queries(q);
  const Where where(pos, now, queries, window);
  if (beyond(start, length, k)) return outside();
  const auto pieces = pieces_of(length.typed_data(), queries.lists, k.dimensions()[0]);
  const auto slots_of = [&](const Piece& piece) { return Stretch{start.typed_data()[piece.list] + piece.first}; };
  return by_type(k, [&](auto type) {
    using T = decltype(type);
    attention(pool, queries, data<T>(k), data<T>(v), pieces, slots_of, where, out->typed_data(), lse->typed_data());
  });
}

ffi::Error GatherAttention(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, S32<3> slots, S32<2> count,
                           ffi::Result<F32<5>> out, ffi::Result<F32<4>> lse) {
  const Queries queries(q);
  const int64_t most = slots.dimensions()[2], limit = k.dimensions()[0];
  const auto pieces = pieces_of(count.typed_data(), queries.lists, most);
  const auto slots_of = [&](const Piece& piece) {
    return Listed{slots.typed_data() + piece.list * most + piece.first, limit};
  };
  return by_type(k, [&](auto type) {
    using T = decltype(type);
    attention(pool, queries, data<T>(k), data<T>(v), pieces, slots_of, Where(), out->typed_data(), lse->typed_data());
  });
}

ffi::Error RaggedScores(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer pos, S32<2> start, S32<2> length,
                        S32<2> now, ffi::Result<F32<5>> out, int64_t window) {
  const Queries queries(q);
  const Where where(pos, now, queries, window);
  if (beyond(start, length, k)) return outside();
  const int64_t cap = out->dimensions()[4], blocks = (cap + PIECE - 1) / PIECE, r = queries.rows, d = queries.d;
  return by_type(k, [&](auto type) {
    using T = decltype(type);
    const T* keys = data<T>(k);
    each_item(pool, queries.lists * blocks, [&](int64_t i) {
      const int64_t list = i / blocks, first = i % blocks * PIECE, width = std::min(PIECE, cap - first);
      const int64_t n = std::clamp<int64_t>(length.typed_data()[list] - first, 0, width);
      const Stretch slots{start.typed_data()[list] + first};
      float* mine = out->typed_data() + list * r * cap + first;
      all_products(queries.of(list), r, d, keys, slots, n, mine, cap);
      hide(where.seen(list), slots, n, 0, r, mine, cap);
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
                                  .Ret<F32<5>>().Ret<F32<4>>().Attr<int64_t>("window"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_gather_attention, GatherAttention,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>().Arg<S32<3>>().Arg<S32<2>>().Ret<F32<5>>().Ret<F32<4>>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_ragged_scores, RaggedScores,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>().Arg<S32<2>>().Arg<S32<2>>().Arg<S32<2>>().Ret<F32<5>>()
                                  .Attr<int64_t>("window"));
