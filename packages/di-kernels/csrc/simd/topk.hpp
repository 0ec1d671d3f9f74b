// Loops of exact selection: scores as integer keys, those above a bound appended to a list, the k-th largest.
#pragma once

#include <cstdint>

#include "isa.hpp"

namespace di::topk_simd {

// A list of keys and where they stood; room for kSlack more than the limit that filter is given.
struct Kept {
  int32_t* key;
  int32_t* index;
  int64_t count;
};
constexpr int64_t kSlack = 80;
constexpr int32_t kBelowAll = INT32_MIN;  // below the key of every score

// Keys have the order of the scores: -0 equals +0, NaN counts as -inf.
struct Table {
  // Appends the scores x[i] with a key above `above` as (key, first + i), in order, until the list is longer
  // than `limit` or x ends. Returns how many scores were looked at.
  int64_t (*filter_float)(const float* x, int64_t n, int32_t first, int32_t above, int64_t limit, Kept* kept);
  int64_t (*filter_bf16)(const uint16_t* x, int64_t n, int32_t first, int32_t above, int64_t limit,
                         Kept* kept);
  // The k-th largest of n >= k >= 1 keys; writes up to kSlack elements behind them.
  int32_t (*kth_largest)(int32_t* keys, int64_t n, int64_t k);
  // out[b] = largest of the scores of block b (NaN counts as -inf), for ceil(n / size) blocks.
  void (*block_maxima)(const float* x, int64_t n, int64_t size, float* out);
};
DI_SIMD_FAMILY

}  // namespace di::topk_simd
