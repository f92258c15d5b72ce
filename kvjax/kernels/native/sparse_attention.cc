// A prompt's queries over chosen columns, diagonals and blocks, as an XLA custom call. Definition: sparse_attention/api.py.
//
// An item is 64 queries of one head, a lane each. They meet the key blocks that hold a chosen diagonal or are chosen, and then
// the chosen columns that neither has shown them, gathered 64 at a time.
#include <algorithm>
#include <memory>

#include "operands.h"
#include "panel.h"
#include "parallel.h"
#include "query_tile.h"

namespace kvjax {
namespace {

// What one head sees.
struct Chosen {
  const int32_t* columns;
  int64_t many;               // columns, those at the end beyond all keys
  const bool* offsets;        // by distance
  const bool *blocks, *whole;  // by key block, of these queries: chosen as a block; taken whole
};

// What is added to the score of a key that stands `nearest` behind a query, or one further, and so on: NONE where it is not seen.
class ByDistance {
 public:
  // seen(distance): whether a key so far behind is seen; asked from 0 to below `stop` only.
  template <class Seen>
  ByDistance(int64_t nearest, int64_t many, int64_t stop, const Seen& seen) {
    std::fill_n(added_, 2 * LANES, NONE);
    const int64_t last = std::min(stop, nearest + many);
    for (int64_t at = std::max<int64_t>(0, nearest); at < last; ++at) added_[at - nearest] = seen(at) ? 0.0f : NONE;
  }
  // Hides a key's scores with 64 queries, of which the first stands `from` further than `nearest` before it.
  void hide(int64_t from, float* scores) const {
    for (int64_t i = 0; i < LANES; i += WIDTH) store(scores + i, load(scores + i) + load(added_ + from + i));
  }

 private:
  float added_[2 * LANES];
};

// Keys and values of a head as floats, where they lie or in `room`.
template <class T>
struct Memory {
  const T *k, *v;
  int64_t d;
  float* room;

  const float* keys(int64_t key, int64_t many) const { return as_floats(k + key * d, many * d, room); }
  const float* values(int64_t key, int64_t many) const { return as_floats(v + key * d, many * d, room + LANES * d); }
  void gather(int64_t key, int64_t to) const {
    numbers(k + key * d, d, room + to * d);
    numbers(v + key * d, d, room + (LANES + to) * d);
  }
};

// 64 queries from position `first` on; there are keys before `stop`.
template <class T>
void see_tiles(Tile& tile, const Memory<T>& memory, const Chosen& chosen, int64_t first, int64_t stop) {
  for (int64_t j = 0; j * LANES < stop; ++j) {
    if (!chosen.whole[j]) continue;
    const int64_t key = j * LANES, keys = std::min(LANES, stop - key);
    const bool block = chosen.blocks[j], all = block && key + keys - 1 <= first;
    const ByDistance seen(first - key - LANES + 1, 2 * LANES, stop, [&](int64_t at) { return block || chosen.offsets[at]; });
    tile.see(memory.keys(key, keys), memory.values(key, keys), keys, [&](float* scores) {
      for (int64_t at = 0; !all && at < keys; ++at) seen.hide(LANES - 1 - at, scores + at * LANES);
    });
  }
}

template <class T>
void see_columns(Tile& tile, const Memory<T>& memory, const Chosen& chosen, int64_t first, int64_t stop) {
  const auto far = [&](int64_t at) { return !chosen.offsets[at]; };
  int64_t keys = 0, distance[LANES];
  const auto meet = [&] {
    tile.see(memory.room, memory.room + LANES * memory.d, keys, [&](float* scores) {
      for (int64_t at = 0; at < keys; ++at) ByDistance(distance[at], LANES, stop, far).hide(0, scores + at * LANES);
    });
    keys = 0;
  };
  for (int64_t i = 0; i < chosen.many && chosen.columns[i] < stop; ++i) {
    const int64_t key = chosen.columns[i];
    if (chosen.blocks[key / LANES]) continue;
    memory.gather(key, keys);
    distance[keys++] = first - key;
    if (keys == LANES) meet();
  }
  if (keys) meet();
}

template <class Q, class T>
void attend(ffi::ThreadPool& pool, const Q* q, const T* k, const T* v, const Shape& shape, const Chosen& chosen, int64_t offset,
            float* out, float* lse) {
  const int64_t d = shape.d, tiles = (shape.t + LANES - 1) / LANES, blocks = (shape.n + LANES - 1) / LANES;
  each_item(pool, shape.lists * shape.g * tiles, [&](int64_t item) {
    const int64_t head = item / tiles, i = item % tiles, rows = std::min(LANES, shape.t - i * LANES);
    const int64_t row = head * shape.t + i * LANES, from = head / shape.g * shape.n * d, stop = offset + i * LANES + rows;
    const Chosen own{chosen.columns + head * chosen.many, chosen.many, chosen.offsets + head * shape.n,
                     chosen.blocks + item * blocks, chosen.whole + item * blocks};
    Tile tile(d, shape.scale());
    const std::unique_ptr<float[]> room(new float[2 * LANES * d]);
    const Memory<T> memory{k + from, v + from, d, room.get()};
    tile.begin(q + row * d, rows);
    see_tiles(tile, memory, own, offset + i * LANES, stop);
    see_columns(tile, memory, own, offset + i * LANES, stop);
    tile.write(rows, out + row * d, lse + row);
  });
}

ffi::Error SparseAttention(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, ffi::AnyBuffer v, S32<4> columns,
                           Bools<4> offsets, Bools<5> blocks, Bools<5> whole, S32<0> offset, ffi::Result<F32<5>> out,
                           ffi::Result<F32<4>> lse) {
  const Shape shape = shape_of(q, k);
  const int64_t first = *offset.typed_data();
  if (first < 0 || first % LANES || first + shape.t > shape.n)
    return ffi::Error::InvalidArgument("kvjax: queries beyond the keys, or from a position that is no multiple of 64");
  const Chosen chosen{columns.typed_data(), columns.dimensions()[3], offsets.typed_data(), blocks.typed_data(), whole.typed_data()};
  return by_both_types(q, k, [&](auto of_q, auto of_k) {
    using Q = decltype(of_q);
    using T = decltype(of_k);
    attend(pool, data<Q>(q), data<T>(k), data<T>(v), shape, chosen, first, out->typed_data(), lse->typed_data());
  });
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_sparse_attention, SparseAttention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<S32<4>>()
                                  .Arg<Bools<4>>()
                                  .Arg<Bools<5>>()
                                  .Arg<Bools<5>>()
                                  .Arg<S32<0>>()
                                  .Ret<F32<5>>()
                                  .Ret<F32<4>>());
