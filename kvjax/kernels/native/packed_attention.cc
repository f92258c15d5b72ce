// Attention over regions of codes and their exact slots, as an XLA custom call. Definition: packed_attention/api.py.
#include "packed_values.h"
#include "pieces.h"

namespace kvjax {
namespace {

// Slots of a region that are exact, as rows of its own: the first `sinks`, and those from `coded` on in a ring behind these.
struct Tail {
  const ffi::AnyBuffer* rows;
  const int32_t* coded;
  int64_t sinks, many;

  Tail(const ffi::AnyBuffer& rows, const S32<2>& coded, int64_t sinks)
      : rows(&rows), coded(coded.typed_data()), sinks(sinks), many(rows.dimensions()[2]) {}

  // How many slots of a piece, from its first on, are read as codes.
  int64_t in(const Piece& piece) const { return std::clamp<int64_t>(coded[piece.list] - piece.first, 0, piece.n); }
};

// The exact slots of a piece: their places in it, and their rows.
struct Exact {
  int64_t n = 0, place[PIECE];
  int32_t row[PIECE];

  Exact(const Tail& tail, const Piece& piece) {
    const int64_t sinks = std::clamp<int64_t>(tail.sinks - piece.first, 0, piece.n), ring = tail.many - tail.sinks;
    for (int64_t i = 0; i < sinks; ++i) add(i, piece.first + i);
    if (ring < 1) return;
    for (int64_t i = std::max(sinks, tail.in(piece)); i < piece.n; ++i) add(i, tail.sinks + (piece.first + i) % ring);
  }

 private:
  void add(int64_t i, int64_t from) { row[n] = int32_t(from), place[n++] = i; }
};

struct Operands {
  Queries<float> q;
  Codes k, v;
  Tail k_tail, v_tail;
  std::unique_ptr<TurnedQueries> turned;
};

// Scores of some rows of a list with the keys of a piece -> scores[row * PIECE + i].
template <class T>
void scores_of(const Operands& x, const Piece& piece, int64_t first, int64_t row, int64_t rows, float* room, Ahead& ahead,
               float* scores) {
  const Rows<float> q = x.q.of(piece.list).from(row, rows);
  packed_scores(q, x.turned.get(), piece.list * x.q.rows + row, x.k, first, x.k_tail.in(piece), room, ahead, scores);
  const Exact exact(x.k_tail, piece);
  if (exact.n == 0) return;
  alignas(64) float found[ROWS * PIECE];
  const T* keys = data<T>(*x.k_tail.rows) + piece.list * x.k_tail.many * x.q.d;
  products(q, keys, Listed{exact.row, x.k_tail.many}, exact.n, found, PIECE);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < exact.n; ++i) scores[r * PIECE + exact.place[i]] = found[r * PIECE + i];
}

// Weighted sums of the values of a piece -> out[row * d], in the order of codes. Weights of exact slots are 0 afterwards.
template <class T>
void values_of(const Operands& x, const Piece& piece, int64_t first, int64_t rows, float* room, float* weights, Ahead& ahead,
               float* out) {
  ahead.some();
  const Exact exact(x.v_tail, piece);
  const int64_t d = x.q.d, coded = x.v_tail.in(piece);
  alignas(64) float own[ROWS * PIECE];
  for (int64_t r = 0; r < rows; ++r) {
    float* mine = weights + r * PIECE;
    for (int64_t i = 0; i < exact.n; ++i) own[r * PIECE + i] = mine[exact.place[i]];
    for (int64_t i = 0; i < exact.n; ++i) mine[exact.place[i]] = 0;
    std::fill(mine + coded, mine + PIECE, 0.0f);
  }
  packed_values(weights, rows, x.v, first, coded, room, ahead, out);
  if (exact.n == 0) return;
  alignas(64) float sums[ROWS * CHANNELS];
  const T* values = data<T>(*x.v_tail.rows) + piece.list * x.v_tail.many * d;
  weighted(own, rows, d, values, Listed{exact.row, x.v_tail.many}, exact.n, sums);
  for (int64_t r = 0; r < rows; ++r) add_turned(sums + r * d, d, x.v.each, out + r * d);
}

template <class T>
void attend(ffi::ThreadPool pool, const Operands& x, const int32_t* start, const std::vector<Piece>& pieces, const Where& where,
            float* out, float* lse) {
  const int64_t r = x.q.rows, d = x.q.d, items = pieces.size();
  std::unique_ptr<float[]> scratch(new float[(items + 1) * r * (d + 2)]);
  float *high = scratch.get(), *total = high + items * r, *part = total + items * r, *turned = part + items * r * d;
  each_item(pool, items, [&](int64_t i) {
    const Piece& piece = pieces[i];
    const int64_t first = start[piece.list] + piece.first;
    static thread_local std::vector<float> room;  // kept: pieces are many, and the system's pages cost more than their contents
    room.resize(std::max<size_t>(room.size(), std::max(2 * room_for(x.k), room_for_values(x.v, ROWS))));
    // While keys are read, values are asked for; while those are, the keys of the next piece, which this thread most often has next.
    Ahead values = x.v.ahead(first, x.v_tail.in(piece)), keys;
    if (i + 1 < items) keys = x.k.ahead(start[pieces[i + 1].list] + pieces[i + 1].first, x.k_tail.in(pieces[i + 1]));
    by_readings(r, [&](int64_t rows, int64_t row) {
      alignas(64) float weights[ROWS * PIECE + WIDTH] = {};
      scores_of<T>(x, piece, first, row, rows, room.data(), values, weights);
      values.some();
      adjust(where.seen(piece.list), Stretch{first}, piece.n, row, rows, weights, PIECE);
      const int64_t at = i * r + row;
      values.some();
      for (int64_t one = 0; one < rows; ++one) softmax(weights + one * PIECE, piece.n, high + at + one, total + at + one);
      values_of<T>(x, piece, first, rows, room.data(), weights, keys, part + at * d);
    });
  });
  for (int64_t list = 0, i = 0; list < x.q.lists; ++list) {
    const int64_t begin = i;
    while (i < items && pieces[i].list == list) ++i;
    combine(pieces.data() + begin, pieces.data() + i, high + begin * r, total + begin * r, part + begin * r * d, r, d, turned,
            lse + list * r);
    for (int64_t row = 0; row < r; ++row) channels(turned + row * d, d, x.v.each, out + (list * r + row) * d);
  }
}

ffi::Error PackedAttention(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k_words, ffi::AnyBuffer k_scale,
                           ffi::AnyBuffer k_low, ffi::AnyBuffer v_words, ffi::AnyBuffer v_scale, ffi::AnyBuffer v_low,
                           ffi::AnyBuffer k_tail, ffi::AnyBuffer v_tail, ffi::AnyBuffer pos, S32<2> start, S32<2> length,
                           S32<2> k_coded, S32<2> v_coded, S32<2> now, F32<1> bias, ffi::Result<F32<5>> out,
                           ffi::Result<F32<4>> lse, int64_t k_bits, int64_t v_bits, int64_t page, int64_t k_sinks,
                           int64_t v_sinks, int64_t window) {
  if (beyond(start, length, pos)) return outside();
  const int64_t d = q.dimensions().back();
  Operands x{Queries<float>(q), Codes(k_words, k_scale, k_low, k_bits, d, page), Codes(v_words, v_scale, v_low, v_bits, d, 1),
             Tail(k_tail, k_coded, k_sinks), Tail(v_tail, v_coded, v_sinks), nullptr};
  if (page == 1) x.turned.reset(new TurnedQueries(x.q, x.k));
  const auto pieces = pieces_of(length.typed_data(), length.element_count(), pos.dimensions()[0]);
  const Where where(pos, start, now, x.q, window, biases(bias));
  return by_type(k_tail, [&](auto type) {
    attend<decltype(type)>(pool, x, start.typed_data(), pieces, where, out->typed_data(), lse->typed_data());
  });
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_packed_attention, PackedAttention,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Arg<S32<2>>().Arg<S32<2>>().Arg<S32<2>>().Arg<S32<2>>().Arg<S32<2>>().Arg<F32<1>>()
                                  .Ret<F32<5>>().Ret<F32<4>>().Attr<int64_t>("k_bits").Attr<int64_t>("v_bits")
                                  .Attr<int64_t>("page").Attr<int64_t>("k_sinks").Attr<int64_t>("v_sinks")
                                  .Attr<int64_t>("window"));
