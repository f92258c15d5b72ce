// Attention of an observation window's queries, summed over them, as an XLA custom call. Definition: window_scores/api.py.
//
// First 64 keys of a KV head, a lane each, meet all its queries, whose scores are kept; then each query head turns its rows of scores
// into probabilities and adds them up. As many KV heads are done at once as have SCORES scores between them.
#include <algorithm>
#include <climits>
#include <cmath>
#include <memory>

#include "operands.h"
#include "panel.h"
#include "parallel.h"

namespace kvjax {
namespace {

// The score of a key that is not seen.
constexpr float NONE = -__builtin_inff();
// Of 4 bytes each.
constexpr int64_t SCORES = 1 << 22;

struct Window {
  int64_t lists, heads, g, w, n, d;  // KV heads of all rows, those of a row, query heads of each, queries, keys, channels
  const int32_t *pos, *length;
  const bool* valid;

  int64_t blocks() const { return (n + LANES - 1) / LANES; }
  int64_t rows() const { return g * w; }
  // Where query i of a list stands.
  int64_t at(int64_t list, int64_t i) const { return length[list / heads] - w + i; }
};

// Positions of a block's keys; beyond every query where there is none.
struct Places {
  alignas(64) int32_t pos[LANES];
  int32_t last = INT_MIN;

  Places(const Window& window, int64_t list, int64_t key, int64_t keys) {
    for (int64_t i = 0; i < LANES; ++i) {
      const int64_t slot = list * window.n + key + i;
      pos[i] = i < keys && window.valid[slot] ? window.pos[slot] : INT_MAX;
      last = std::max(last, pos[i]);
    }
  }
  void hide(int64_t at, float* scores) const {
    if (last <= at) return;
    for (int64_t i = 0; i < LANES; ++i)
      if (pos[i] > at) scores[i] = NONE;
  }
};

// scores[row * LANES + lane] of 64 keys from `key` on with all rows of a list.
template <class T>
void meet(const Window& window, const T* k, const float* q, int64_t list, int64_t key, float* scores) {
  const int64_t keys = std::min(LANES, window.n - key), d = window.d;
  const std::unique_ptr<float[]> panel(new float[d * LANES]);
  as_panel(k + (list * window.n + key) * d, keys, d, 1.0f, panel.get());
  products_with_panel<false>(panel.get(), {q + list * window.rows() * d, d, 1}, window.rows(), d, scores);
  const Places places(window, list, key, keys);
  for (int64_t row = 0; row < window.rows(); ++row) places.hide(window.at(list, row % window.w), scores + row * LANES);
}

float largest(const Vec& x) {
  float high = x[0];
  for (int i = 1; i < WIDTH; ++i) high = std::max(high, x[i]);
  return high;
}

// A row's scores, LANES of them every `stride` numbers, as exp(score - high) in their place: 1 / their sum, or 0 where nothing is seen.
float exponentials(float* scores, int64_t blocks, int64_t stride, float scale) {
  Vec high = all(LOW);
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t i = 0; i < LANES; i += WIDTH) high = larger(high, load(scores + b * stride + i));
  const Vec most = all(largest(high));
  Vec total = {};
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t i = 0; i < LANES; i += WIDTH) {
      float* const own = scores + b * stride + i;
      const Vec p = exponential((load(own) - most) * scale);
      store(own, p);
      total += p;
    }
  const float all_of_it = sum(total);
  return all_of_it > 0 ? 1 / all_of_it : 0;
}

// One query head: its w rows of every block -> out[key].
void add_up(const Window& window, float* scores, float* out) {
  const int64_t stride = window.rows() * LANES, blocks = window.blocks();
  const float scale = 1 / std::sqrt(static_cast<float>(window.d));
  const std::unique_ptr<float[]> sums(new float[blocks * LANES]());
  for (int64_t i = 0; i < window.w; ++i) {
    const Vec share = all(exponentials(scores + i * LANES, blocks, stride, scale));
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t j = 0; j < LANES; j += WIDTH) {
        float* const to = sums.get() + b * LANES + j;
        store(to, load(to) + share * load(scores + b * stride + i * LANES + j));
      }
  }
  std::copy_n(sums.get(), window.n, out);
}

ffi::Error WindowScores(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer k, S32<3> pos, Bools<3> valid, S32<1> length,
                        ffi::Result<F32<4>> out) {
  const auto of = q.dimensions();
  const Window window{of[0] * of[1], of[1], of[2], of[3], k.dimensions()[2], of[4], pos.typed_data(), length.typed_data(),
                      valid.typed_data()};
  const Queries<float> queries(q);
  const int64_t every = window.rows() * LANES * window.blocks();  // scores of a list
  const int64_t many = std::clamp<int64_t>(SCORES / std::max<int64_t>(every, 1), 1, std::max<int64_t>(window.lists, 1));
  const std::unique_ptr<float[]> scores(new float[many * every]);
  for (int64_t first = 0; first < window.lists; first += many) {
    const int64_t lists = std::min(many, window.lists - first);
    const auto error = by_type(k, [&](auto type) {
      each_item(pool, lists * window.blocks(), [&](int64_t item) {
        const int64_t list = first + item / window.blocks(), block = item % window.blocks();
        meet(window, data<decltype(type)>(k), queries.numbers, list, block * LANES, scores.get() + item * window.rows() * LANES);
      });
    });
    if (error.failure()) return error;
    each_item(pool, lists * window.g, [&](int64_t item) {
      float* const own = scores.get() + item / window.g * every + item % window.g * window.w * LANES;
      add_up(window, own, out->typed_data() + (first * window.g + item) * window.n);
    });
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace kvjax

using namespace kvjax;

XLA_FFI_DEFINE_HANDLER_SYMBOL(kvjax_window_scores, WindowScores,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<S32<3>>()
                                  .Arg<Bools<3>>()
                                  .Arg<S32<1>>()
                                  .Ret<F32<4>>());
