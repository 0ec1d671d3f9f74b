// A weight matrix in its stored form, read where it lies: nothing is copied, aligned or written.
#pragma once

#include <cstdint>

#include "numeric.hpp"

namespace di {

enum class WeightFormat { float32 = 0, bfloat16 = 1, fp8 = 2, mxfp4 = 3 };

// Element `i` of an array of T that starts at any byte address.
template <class T>
inline T load_unaligned(const uint8_t* base, int64_t i) {
  T value;
  __builtin_memcpy(&value, base + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Matrix [n, k]; rows of data and of scales are `row_bytes` and `scale_row_bytes` apart. FP8 has one scale
// row for 32 rows (checkpoint specification, 3.3), MXFP4 one for each row (3.4); both have one scale for 32
// inputs.
struct Weight {
  WeightFormat format;
  const uint8_t* data;
  int64_t row_bytes;
  const uint8_t* scale;
  int64_t scale_row_bytes;
  int64_t n, k;
};

// Rows begin..begin+count-1 as float32 [count, k].
void decode_rows(const Weight& weight, int64_t begin, int64_t count, float* out);

}  // namespace di
