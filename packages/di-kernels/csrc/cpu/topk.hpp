// Exact selection of the largest scores: ascending indices, of equal scores the lowest index wins.
#pragma once

#include <cstdint>
#include <vector>

#include "numeric.hpp"

namespace di {

// The k largest of scores that come in stretches, in index order; memory is O(k), whatever comes. -0 equals
// +0, NaN counts as -inf. A score is dropped as soon as k larger or earlier ones are known, so the usual one
// costs a comparison. Subnormal scores count as what the arithmetic in force makes of them. Memory is kept
// from one selection to the next.
class TopK {
 public:
  // k >= 1. Scores whose key is not above `above` are left out: the caller knows that k others exist, or
  // starts again when finish() yields fewer.
  void start(int64_t k, int32_t above);
  void start(int64_t k);

  // Scores of the indices first..first+n-1; both grow from push to push.
  void push(const float* scores, int64_t n, int64_t first);
  void push(const bf16* scores, int64_t n, int64_t first);

  // Joins what another selection of the same k has kept; all of its indices are larger than those here.
  void merge(const TopK& later);

  // Writes the indices of the (at most k) largest, ascending, and returns how many there are.
  int64_t finish(int32_t* out);

 private:
  void prune();
  template <class T>
  void filter(const T* scores, int64_t n, int64_t first);

  std::vector<int32_t> key_, index_;
  int64_t k_ = 0, count_ = 0, limit_ = 0;
  int32_t above_ = 0;
};

// Indices of the min(k, n) largest scores, ascending; returns how many. `work` is reused between calls.
template <class T>
int64_t select_largest(const T* scores, int64_t n, int64_t k, TopK& work, int32_t* out);

// out[r] = indices of the min(k, lengths[r]) largest of scores[r][0..lengths[r]), ascending, then -1.
// scores [rows, n] with the given row stride; lengths are clipped to [0, n]; out [rows, k] contiguous.
template <class T>
void topk_indices(const T* scores, int64_t stride, int64_t rows, int64_t n, const int32_t* lengths, int64_t k,
                  int32_t* out);

}  // namespace di
