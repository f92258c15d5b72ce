// Masks of the k largest keys of rows, and lists of them, as XLA custom calls. Definitions: select_top/api.py and list_top/api.py.
#include <memory>
#include <vector>

#include "operands.h"
#include "parallel.h"
#include "vector.h"

namespace kvjax {
namespace {

using Keys = std::vector<uint32_t>;
using Ranks = ffi::Buffer<ffi::U32, 2>;
using Mask = ffi::Buffer<ffi::PRED, 2>;

// The least key taken, and how many of those equal to it.
struct Cut {
  uint32_t value;
  int64_t equals;
};

// The least key above 0 and the largest; the first exceeds the second where there is none.
struct Ends {
  uint32_t low, high;
};
Ends ends(const uint32_t* keys, int64_t n) {
  Words least = Words{} - 1u, most = {};
  uint32_t before = UINT32_MAX, high = 0;  // of keys less one, so that 0 is last
  int64_t i = 0;
  for (; i + WIDTH <= n; i += WIDTH) {
    const Words x = unaligned<Words>(keys + i), less = x - 1u;
    least = less < least ? less : least, most = x > most ? x : most;
  }
  for (int lane = 0; lane < WIDTH; ++lane) before = std::min(before, least[lane]), high = std::max(high, most[lane]);
  for (; i < n; ++i) before = std::min(before, keys[i] - 1), high = std::max(high, keys[i]);
  return {before + 1, high};
}

// How many keys are at or above t.
int64_t reaching(const uint32_t* keys, int64_t n, uint32_t t) {
  Ints hits = {};
  int64_t i = 0, count = 0;
  for (; i + WIDTH <= n; i += WIDTH) hits -= unaligned<Words>(keys + i) >= t;
  for (int lane = 0; lane < WIDTH; ++lane) count += hits[lane];
  for (; i < n; ++i) count += keys[i] >= t;
  return count;
}

// Those between low and high, which are `count`.
Keys between(const uint32_t* keys, int64_t n, uint32_t low, uint32_t high, int64_t count) {
  Keys inside(count + WIDTH);  // whole vectors are written
  int64_t i = 0, at = 0;
#if defined(__AVX512F__)
  for (; i + WIDTH <= n; i += WIDTH) {
    const __m512i x = _mm512_loadu_si512(keys + i);
    const __mmask16 kept = _mm512_cmple_epu32_mask(_mm512_sub_epi32(x, _mm512_set1_epi32(low)), _mm512_set1_epi32(high - low));
    _mm512_storeu_si512(inside.data() + at, _mm512_maskz_compress_epi32(kept, x));
    at += __builtin_popcount(kept);
  }
#endif
  for (; at < count; ++i) {
    inside[at] = keys[i];
    at += keys[i] - low <= high - low;
  }
  inside.resize(count);
  return inside;
}

// The k-th largest key, by halving what it lies between; keys outside are dropped once they are most.
Cut cut_at(const uint32_t* keys, int64_t n, int64_t k) {
  if (k <= 0) return {UINT32_MAX, 0};
  auto [low, high] = ends(keys, n);
  int64_t from_low = k < n && high > 0 ? reaching(keys, n, low) : 0, past_high = 0;  // keys at or above low; above high
  if (from_low <= k) return {0, 0};
  Keys inside;
  int64_t dropped = 0;  // of the keys above high those not in `keys`
  while (low < high) {
    if (from_low - past_high < n / 4) {
      inside = between(keys, n, low, high, from_low - past_high);
      keys = inside.data(), n = inside.size(), dropped = past_high;
    }
    const uint32_t middle = high - (high - low) / 2;
    const int64_t many = dropped + reaching(keys, n, middle);
    if (many == k) return {middle, INT64_MAX};
    if (many > k) low = middle, from_low = many;
    else high = middle - 1, past_high = many;
  }
  return {low, k - past_high};
}

void mark(const uint32_t* keys, int64_t n, Cut cut, bool* out) {
  if (cut.value == 0) cut.equals = 0;  // no slot
  if (cut.equals == INT64_MAX) {
    for (int64_t i = 0; i < n; ++i) out[i] = keys[i] >= cut.value;
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = keys[i] > cut.value;
  for (int64_t i = 0; i < n && cut.equals > 0; ++i)
    if (keys[i] == cut.value) out[i] = true, --cut.equals;
}

// Indices of the keys that `mark` marks, ascending, up to `most`; 0 behind them.
void list(const uint32_t* keys, int64_t n, Cut cut, int64_t most, int32_t* out) {
  const std::unique_ptr<bool[]> taken(new bool[n]);
  mark(keys, n, cut, taken.get());
  int64_t at = 0;
  for (int64_t i = 0; i < n && at < most; ++i)
    if (taken[i]) out[at++] = int32_t(i);
  std::fill(out + at, out + most, 0);
}

ffi::Error ListTop(ffi::ThreadPool pool, Ranks rank, S32<1> k, ffi::Result<S32<2>> out) {
  const int64_t n = rank.dimensions()[1], most = out->dimensions()[1];
  each_item(pool, rank.dimensions()[0], [&](int64_t row) {
    const uint32_t* keys = rank.typed_data() + row * n;
    list(keys, n, cut_at(keys, n, std::min<int64_t>(k.typed_data()[row], most)), most, out->typed_data() + row * most);
  });
  return ffi::Error::Success();
}

ffi::Error SelectTop(ffi::ThreadPool pool, Ranks rank, S32<1> k, ffi::Result<Mask> out) {
  const int64_t n = rank.dimensions()[1];
  each_item(pool, rank.dimensions()[0], [&](int64_t row) {
    const uint32_t* keys = rank.typed_data() + row * n;
    mark(keys, n, cut_at(keys, n, k.typed_data()[row]), out->typed_data() + row * n);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_select_top, SelectTop,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Ranks>().Arg<S32<1>>().Ret<Mask>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_list_top, ListTop,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Ranks>().Arg<S32<1>>().Ret<S32<2>>());
