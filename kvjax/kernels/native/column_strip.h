// The probabilities of 64 queries with every key they see, kept until the queries' denominators are known.
#pragma once

#include <algorithm>
#include <memory>

#include "panel.h"

namespace kvjax {

// A place for the scores of every tile of 64 keys, and for the maxima that its probabilities were taken below.
class Strip {
 public:
  explicit Strip(int64_t tiles) : room_(new float[tiles * SIZE]) {}

  float* scores(int64_t tile) { return room_.get() + tile * SIZE; }

  // What a tile of `keys` keys was taken below; of keys beyond there is nothing.
  void note(int64_t tile, int64_t keys, const float* high) {
    std::fill(scores(tile) + keys * LANES, scores(tile) + LANES * LANES, 0.0f);
    std::copy_n(high, LANES, scores(tile) + LANES * LANES);
  }

  // sums[key] += sum_i exp(s_i,key - lse_i) for the keys of tiles `from` to `to`, those of tile `from` first; an lse of infinity
  // is of a lane that does not count.
  void pay(int64_t from, int64_t to, const float* lse, float* sums) {
    for (; from < to; ++from, sums += LANES) {
      float* const numbers = scores(from);
      Vec share[LANES / WIDTH];
      for (int64_t i = 0; i < LANES / WIDTH; ++i)
        share[i] = exponential(load(numbers + LANES * LANES + i * WIDTH) - load(lse + i * WIDTH));
      for (int64_t key = 0; key < LANES; key += WIDTH) store(sums + key, load(sums + key) + of_keys(numbers + key * LANES, share));
    }
  }

 private:
  static constexpr int64_t SIZE = (LANES + 1) * LANES;

  // Of as many keys as a register has numbers.
  static Vec of_keys(const float* numbers, const Vec* share) {
    Quarter parts[WIDTH / 4];
    KVJAX_UNROLL for (int i = 0; i < WIDTH / 4; ++i) {
      Vec x[4];
      KVJAX_UNROLL for (int j = 0; j < 4; ++j) x[j] = of_key(numbers + (4 * i + j) * LANES, share);
      parts[i] = quarter(x[0], x[1], x[2], x[3]);
    }
    return sums(parts);
  }
  static Vec of_key(const float* numbers, const Vec* share) {
    Vec sum = load(numbers) * share[0];
    KVJAX_UNROLL for (int i = 1; i < LANES / WIDTH; ++i) sum += load(numbers + i * WIDTH) * share[i];
    return sum;
  }

  const std::unique_ptr<float[]> room_;
};

}  // namespace kvjax
