#pragma once

#include <bit>
#include <cstdint>
#include <vector>

namespace di {

// Unsigned key with the order of the scores: -0 equals +0, NaN counts as -inf.
inline uint32_t order_key(float x) {
  if (x == 0.0f) return 0x80000000u;
  const uint32_t bits = x == x ? std::bit_cast<uint32_t>(x) : 0xff800000u;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Writes the indices of the min(k, n) largest keys, ascending; equal keys at the boundary: the lowest index
// wins. Returns how many were written. O(n); `scratch` is reused between calls.
int64_t select_largest(const uint32_t* keys, int64_t n, int64_t k, std::vector<uint32_t>& scratch,
                       int32_t* out);

// out[r] = indices of the min(k, lengths[r]) largest of scores[r][0..lengths[r]), ascending, then -1.
// scores [rows, n] with the given row stride; lengths are clipped to [0, n]; out [rows, k] contiguous.
void topk_indices(const float* scores, int64_t stride, int64_t rows, int64_t n, const int32_t* lengths,
                  int64_t k, int32_t* out);

}  // namespace di
