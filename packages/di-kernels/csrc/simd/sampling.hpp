// Loops over one row of logits: what is largest, softmax weights in fixed point, what the filters keep.
// The contract is in src/di_kernels/ops/sampling.py.
#pragma once

#include <cstdint>

#include "isa.hpp"

namespace di::sampling_simd {

// Weights are summed a block of columns at a time, so that a draw finds its column without walking the row.
constexpr int64_t kBlock = 1024;

// Weights are e^z in units of 2^-31, where z <= 0 is a column's distance from the largest logit over the
// temperature. From kLowest down they are 0.
constexpr float kLowest = -22.0f;

// A histogram over z from 0 down to kLowest. What lies lower belongs to no bucket.
constexpr float kBucketsPerUnit = 32.0f;
constexpr int kBuckets = 704;
static_assert(kBuckets == -kLowest * kBucketsPerUnit);
struct Bucket {
  uint64_t mass, count;
};

// Columns before the first one that a filter drops, in rank order: `logit` is the last kept one's, and
// columns of the same logit are kept up to `column`.
struct Cut {
  float logit;
  int32_t column;
  uint32_t least_weight;
};

struct Peak {
  float logit;     // the largest; NaN when the row has no distribution: NaN, +inf, or nothing above -inf
  int64_t column;  // the lowest one that has it
  bool finite;     // no NaN and no infinity
};

struct Table {
  Peak (*peak)(const float* x, int64_t n);
  // Fills weights (room for a multiple of 16) and the sums of blocks.
  void (*weigh)(const float* x, int64_t n, float top, float scale, uint32_t* weights, uint64_t* sums);
  // Fills the buckets first..end-1.
  void (*count)(const float* x, const uint32_t* weights, int64_t n, float top, float scale, int first,
                int end, Bucket* buckets);
  // The columns of a bucket, ascending; returns how many.
  int64_t (*members)(const float* x, int64_t n, float top, float scale, int bucket, int32_t* columns);
  // Sets the weights of columns beyond the cut to 0, and the sums of blocks to what is left.
  void (*keep)(const float* x, int64_t n, Cut cut, uint32_t* weights, uint64_t* sums);
  double (*sum_exp)(const float* x, int64_t n, float top);  // of e^(x - top)
  void (*log_softmax)(const float* x, int64_t n, float top, double log_sum, float* out);
  int64_t (*rank)(const float* x, int64_t n, int64_t column);  // columns that rank before this one
  void (*apply_bitmask)(float* x, int64_t n, const uint32_t* words);
};
DI_SIMD_FAMILY

}  // namespace di::sampling_simd
