// 64 queries of a prompt over 64 keys at a time with an online softmax.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>

#include "operands.h"
#include "panel.h"

namespace kvjax {

// The score of a key that is not seen.
constexpr float NONE = -__builtin_inff();

// Of a call.
struct Shape {
  int64_t lists, g, t, n, d;  // KV heads of all rows, query heads of each, queries, keys, channels
  float scale() const { return 1.0f / std::sqrt(float(d)); }
};

inline Shape shape_of(const ffi::AnyBuffer& q, const ffi::AnyBuffer& k) {
  const auto of = q.dimensions();
  return {of[0] * of[1], of[2], of[3], k.dimensions()[2], of[4]};
}

// 64 queries of a head: what they have seen so far, a lane a query. `begin` gives it the queries, `see` keys and values, `write`
// takes what came of them.
class Tile {
 public:
  Tile(int64_t d, float scale) : d_(d), scale_(scale), room_(new float[(2 * d + LANES) * LANES]) {
    queries_ = room_.get();
    out_ = queries_ + d * LANES;
    scores_ = out_ + d * LANES;
    std::fill_n(out_, d * LANES, 0.0f);
    std::fill_n(high_, LANES, LOW);
    std::fill_n(total_, LANES, 0.0f);
  }

  template <class Q>
  void begin(const Q* q, int64_t rows) {
    as_panel(q, rows, d_, scale_, queries_);
  }

  // The queries meet up to 64 keys. hide(scores) takes away what is not seen from scores[key * LANES + query].
  template <class T, class Hide>
  void see(const T* k, const T* v, int64_t keys, const Hide& hide) {
    if (sizeof(T) < 4 && !converted_) converted_.reset(new float[LANES * d_]);
    products_with_panel<false>(queries_, {as_floats(k, keys * d_, converted_.get()), d_, 1}, keys, d_, scores_);
    hide(scores_);
    for (int64_t i = 0; i < LANES; i += WIDTH) probabilities(i, keys);
    products_with_panel<true>(scores_, {as_floats(v, keys * d_, converted_.get()), 1, d_}, d_, keys, out_);
  }

  // Where the scores, and then the probabilities, of the keys that it meets next are left: scores[key * LANES + query].
  void leave(float* scores) { scores_ = scores; }

  // The greatest score of each lane so far, which the last probabilities were taken below.
  const float* high() const { return high_; }

  // Outputs and log-denominators of the first `rows` lanes.
  void write(int64_t rows, float* out, float* lse) const {
    for (int64_t i = 0; i < rows; ++i) {
      const float inverse = 1.0f / total_[i];
      for (int64_t c = 0; c < d_; ++c) out[i * d_ + c] = out_[c * LANES + i] * inverse;
      lse[i] = high_[i] + std::log(total_[i]);
    }
  }

 protected:
  // Scores of a register of lanes -> exp(score - greatest so far); what was there is rescaled to the new greatest.
  void probabilities(int64_t i, int64_t keys) {
    const Vec before = load(high_ + i);
    Vec high = before, total = {};
    for (int64_t j = 0; j < keys; ++j) high = larger(high, load(scores_ + j * LANES + i));
    for (int64_t j = 0; j < keys; ++j) {
      const Vec p = exponential(load(scores_ + j * LANES + i) - high);
      store(scores_ + j * LANES + i, p);
      total += p;
    }
    if (std::memcmp(&before, &high, sizeof(Vec)) == 0) {  // nothing is rescaled
      store(total_ + i, load(total_ + i) + total);
      return;
    }
    const Vec decay = exponential(before - high);
    for (int64_t c = 0; c < d_; ++c) store(out_ + c * LANES + i, load(out_ + c * LANES + i) * decay);
    store(total_ + i, load(total_ + i) * decay + total);
    store(high_ + i, high);
  }

  const int64_t d_;
  const float scale_;
  const std::unique_ptr<float[]> room_;
  std::unique_ptr<float[]> converted_;
  float *queries_, *out_, *scores_;
  alignas(64) float high_[LANES];
  alignas(64) float total_[LANES];
};

// body(q, k) for both types of numbers, each as it lies in memory.
template <class Body>
ffi::Error by_both_types(const ffi::AnyBuffer& q, const ffi::AnyBuffer& k, const Body& body) {
  ffi::Error inner = ffi::Error::Success();
  const ffi::Error error = by_type(q, [&](auto of_q) { inner = by_type(k, [&](auto of_k) { body(of_q, of_k); }); });
  return error.failure() ? error : inner;
}

}  // namespace kvjax
