// Which keys the queries of a prompt see.
#pragma once

#include <algorithm>

#include "query_tile.h"

namespace kvjax {

// Positions of query rows and keys: query i stands at offset + i and sees the keys of (position - window, position].
struct Sight {
  int64_t offset, window;  // window: 0 for none

  int64_t first_key(int64_t row) const { return window ? std::max<int64_t>(0, offset + row - window + 1) : 0; }
  // Whether every one of `rows` rows sees every one of `keys` keys.
  bool whole(int64_t row, int64_t rows, int64_t key, int64_t keys) const {
    return key + keys - 1 <= offset + row && key >= first_key(row + rows - 1);
  }
  // Scores of keys, a row each, with the queries from row `first` on, a lane each: none where the query does not see the key.
  void hide(int64_t first, int64_t keys, int64_t key, float* scores) const {
    for (int64_t j = 0; j < keys; ++j, scores += LANES) {
      const int64_t behind = std::clamp<int64_t>(key + j - offset - first, 0, LANES);  // lanes of queries before the key
      std::fill_n(scores, behind, NONE);
      if (!window) continue;
      const int64_t within = std::clamp<int64_t>(key + j + window - offset - first, 0, LANES);
      std::fill(scores + within, scores + LANES, NONE);
    }
  }
  // The same of the scores of queries, a row each from row `first` on, with the keys from `key` on, a lane each.
  void hide_keys(int64_t first, int64_t rows, int64_t key, float* scores) const {
    for (int64_t r = first; r < first + rows; ++r, scores += LANES) {
      std::fill_n(scores, std::clamp<int64_t>(first_key(r) - key, 0, LANES), NONE);
      std::fill(scores + std::clamp<int64_t>(offset + r + 1 - key, 0, LANES), scores + LANES, NONE);
    }
  }
};

}  // namespace kvjax
