// Probabilities of a row of scores, with sums of a piece in float32 and of pieces in double.
#pragma once

#include <cmath>

#include "attention.h"

namespace kvjax {

inline float greatest(const float* x, int64_t n) {
  Vec most = all(LOW);
  int64_t i = 0;
  for (; i + WIDTH <= n; i += WIDTH) most = larger(most, load(x + i));
  float high = LOW;
  for (int lane = 0; lane < WIDTH; ++lane) high = std::max(high, most[lane]);
  for (; i < n; ++i) high = std::max(high, x[i]);
  return high;
}

// scores -> probabilities -> out, and log sum exp; zeros and -inf where there is no finite score.
inline float probabilities(const float* scores, int64_t n, float* out) {
  const float high = greatest(scores, n);
  double total = 0;
  for (int64_t first = 0; first < n; first += PIECE) {
    const int64_t width = std::min(PIECE, n - first);
    alignas(64) float piece[PIECE];
    std::copy_n(scores + first, width, piece);
    std::fill(piece + width, piece + PIECE, NOTHING);
    Vec added = {};
    for (int64_t i = 0; i < width; i += WIDTH) {
      const Vec weights = exponential(load(piece + i) - high);
      store(piece + i, weights);
      added += weights;
    }
    std::copy_n(piece, width, out + first);
    total += sum(added);
  }
  const float inverse = total > 0 ? float(1 / total) : 0;
  for (int64_t i = 0; i < n; ++i) out[i] *= inverse;
  return total > 0 ? high + float(std::log(total)) : NOTHING;
}

}  // namespace kvjax
