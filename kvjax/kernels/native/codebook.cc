// Scores from codes as an XLA custom call. Definition: codebook_scores/api.py.
#include <algorithm>
#include <memory>

#include "attention.h"
#include "operands.h"
#include "parallel.h"

namespace kvjax {
namespace {

// Query rows looked up together: their entries for one centroid are one load.
constexpr int64_t LANES = 4;
// Groups of channels looked up together, a word of codes: their tables, and the sums of about as many slots as a table has entries,
// stay in the first- or second-level cache while those slots are gone through.
template <class Code>
constexpr int GROUPS = sizeof(uint64_t) / sizeof(Code);
constexpr int64_t FEWEST = 256, MOST = 8192;
// Entries of all tables that are held at once, at most.
constexpr int64_t ENTRIES = 1 << 18;

typedef Quad Entry;

// table[c] = the products of up to LANES rows' group of e channels with centroid c; rows that are not there are zeros.
template <class T>
void fill_table(const Rows<float>& q, int64_t channel, const T* book, int64_t c, int64_t e, Entry* table) {
  constexpr int64_t SOME = 64 * WIDTH;
  float centroids[SOME];
  Entry query[SOME];
  for (int64_t j = 0; j < e; ++j)
    for (int64_t r = 0; r < LANES; ++r) query[j][r] = r < q.n ? q[r][channel + j] * q.scale : 0;
  const int64_t whole = SOME / e;
  for (int64_t first = 0; first < c; first += whole) {
    const int64_t n = std::min(whole, c - first);
    numbers(book + first * e, n * e, centroids);
    for (int64_t i = 0; i < n; ++i) {
      Entry found = {};
      for (int64_t j = 0; j < e; ++j) found += query[j] * centroids[i * e + j];
      table[first + i] = found;
    }
  }
}

// Rows of a group's table: bytes need no check to stay within it.
template <class Code>
int64_t entries(int64_t c) {
  return sizeof(Code) == 1 ? 256 : c;
}

template <class Code>
inline const Entry& named(const Entry* table, uint64_t codes, int j, int64_t c) {
  const int64_t code = static_cast<Code>(codes >> (8 * sizeof(Code) * j));
  return table[j * entries<Code>(c) + (sizeof(Code) == 1 ? code : std::min(code, c - 1))];
}

// The entries that COUNT codes of a word name, from the first on, added up in pairs.
template <class Code, int COUNT>
inline Entry pairs(const Entry* table, uint64_t codes, int first, int64_t c) {
  if constexpr (COUNT == 1) return named<Code>(table, codes, first, c);
  else return pairs<Code, COUNT / 2>(table, codes, first, c) + pairs<Code, COUNT / 2>(table, codes, first + COUNT / 2, c);
}

// sums[i] += the entries that a word of slot i's codes names.
template <class Code>
void look_up(const Entry* table, int64_t c, const Code* codes, int64_t m, int64_t n, Entry* sums) {
  for (int64_t i = 0; i < n; ++i) {
    uint64_t word;
    std::memcpy(&word, codes + i * m, sizeof(word));
    sums[i] += pairs<Code, GROUPS<Code>>(table, word, 0, c);
  }
}

template <class Code>
void look_up_all(const Entry* table, int64_t c, const Code* codes, int64_t m, int64_t n, Entry* sums) {
  std::fill_n(sums, n, Entry{});
  int64_t group = 0;
  for (; group + GROUPS<Code> <= m; group += GROUPS<Code>)
    look_up(table + group * entries<Code>(c), c, codes + group, m, n, sums);
  for (; group < m; ++group)
    for (int64_t i = 0; i < n; ++i) sums[i] += named<Code>(table + group * entries<Code>(c), codes[i * m + group], 0, c);
}

// out[r * stride + i] = sums[i][r] for the first `rows` lanes.
void turn(const Entry* sums, int64_t n, int64_t rows, float* out, int64_t stride) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const Entry a = KVJAX_PICK(sums[i], sums[i + 1], 0, 4, 1, 5), b = KVJAX_PICK(sums[i], sums[i + 1], 2, 6, 3, 7);
    const Entry c = KVJAX_PICK(sums[i + 2], sums[i + 3], 0, 4, 1, 5), d = KVJAX_PICK(sums[i + 2], sums[i + 3], 2, 6, 3, 7);
    const Entry lanes[LANES] = {KVJAX_PICK(a, c, 0, 1, 4, 5), KVJAX_PICK(a, c, 2, 3, 6, 7), KVJAX_PICK(b, d, 0, 1, 4, 5),
                                KVJAX_PICK(b, d, 2, 3, 6, 7)};
    for (int64_t r = 0; r < rows; ++r) std::memcpy(out + r * stride + i, &lanes[r], sizeof(Entry));
  }
  for (; i < n; ++i)
    for (int64_t r = 0; r < rows; ++r) out[r * stride + i] = sums[i][r];
}

struct Book {
  const void* data;
  int64_t heads, groups, c, e;
};

template <class Code, class T>
void scores(ffi::ThreadPool pool, const Queries<float>& q, const Code* codes, int64_t m, const Book& book, const int32_t* start,
            const int32_t* length, const Where& where, int64_t cap, float* out) {
  const int64_t quads = (q.rows + LANES - 1) / LANES, own = quads * m * entries<Code>(book.c);
  const int64_t slots = std::clamp(book.c, FEWEST, MOST), blocks = (cap + slots - 1) / slots;
  const int64_t together = std::clamp<int64_t>(ENTRIES / std::max<int64_t>(own, 1), 1, q.lists);
  std::unique_ptr<Entry[]> tables(new Entry[together * own]);
  for (int64_t begin = 0; begin < q.lists; begin += together) {
    const int64_t lists = std::min(together, q.lists - begin);
    each_item(pool, lists * m, [&](int64_t i) {
      const int64_t list = begin + i / m, group = i % m;
      const T* centroids = static_cast<const T*>(book.data) +
                           (list % book.heads * book.groups + (book.groups == 1 ? 0 : group)) * book.c * book.e;
      for (int64_t quad = 0; quad < quads; ++quad)
        fill_table(q.of(list).from(quad * LANES, std::min(LANES, q.rows - quad * LANES)), group * book.e, centroids, book.c, book.e,
                   tables.get() + ((i / m * quads + quad) * m + group) * entries<Code>(book.c));
    });
    each_item(pool, lists * blocks, [&](int64_t i) {
      const int64_t list = begin + i / blocks, first = i % blocks * slots, width = std::min(slots, cap - first);
      const int64_t n = std::clamp<int64_t>(length[list] - first, 0, width), at = start[list] + first;
      float* mine = out + list * q.rows * cap + first;
      std::unique_ptr<Entry[]> room(new Entry[n]);
      Entry* sums = room.get();
      for (int64_t quad = 0; quad < quads; ++quad) {
        look_up_all(tables.get() + (i / blocks * quads + quad) * m * entries<Code>(book.c), book.c, codes + at * m, m, n, sums);
        turn(sums, n, std::min(LANES, q.rows - quad * LANES), mine + quad * LANES * cap, cap);
      }
      hide(where.seen(list), Stretch{at}, n, 0, q.rows, mine, cap);
      for (int64_t row = 0; row < q.rows; ++row) std::fill(mine + row * cap + n, mine + row * cap + width, NOTHING);
    });
  }
}

ffi::Error CodebookScores(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer codes, ffi::AnyBuffer book, ffi::AnyBuffer pos,
                          S32<2> start, S32<2> length, S32<2> now, ffi::Result<F32<5>> out, int64_t window) {
  const auto shape = book.dimensions();
  const Book centroids{book.untyped_data(), shape[0], shape[1], shape[2], shape[3]};
  const int64_t m = codes.dimensions()[1];
  const Queries<float> queries(q);
  const Where where(pos, start, now, queries, window);
  if (beyond(start, length, codes)) return outside();
  return by_type(book, [&](auto type) {
    auto run = [&](auto code) {
      using Code = decltype(code);
      scores<Code, decltype(type)>(pool, queries, data<Code>(codes), m, centroids, start.typed_data(), length.typed_data(),
                                   where, out->dimensions()[4], out->typed_data());
    };
    codes.element_type() == ffi::U8 ? run(uint8_t()) : run(uint16_t());
  });
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_codebook_scores, CodebookScores,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Arg<S32<2>>().Arg<S32<2>>().Arg<S32<2>>()
                                  .Ret<F32<5>>().Attr<int64_t>("window"));
