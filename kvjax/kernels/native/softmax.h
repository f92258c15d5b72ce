// Probabilities of a row of scores, with sums of a piece in float32 and of pieces in double.
#pragma once

#include <cmath>

#include "attention.h"

namespace kvjax {

// scores -> probabilities -> out, and log sum exp; zeros and -inf where there is no finite score.
inline float probabilities(const float* scores, int64_t n, float* out) {
  float high = greatest(scores, n);
  for (int64_t i = n - n % WIDTH; i < n; ++i) high = std::max(high, scores[i]);
  double total = 0;
  for (int64_t first = 0; first < n; first += PIECE) {
    const int64_t width = std::min(PIECE, n - first);
    alignas(64) float piece[PIECE];
    std::copy_n(scores + first, width, piece);
    std::fill(piece + width, piece + PIECE, NOTHING);
    total += exponentials(piece, width, high);
    std::copy_n(piece, width, out + first);
  }
  const float inverse = total > 0 ? float(1 / total) : 0;
  for (int64_t i = 0; i < n; ++i) out[i] *= inverse;
  return total > 0 ? high + float(std::log(total)) : NOTHING;
}

}  // namespace kvjax
