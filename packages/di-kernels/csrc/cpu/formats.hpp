// The three group quantizers (cache specification, 4): E4M3 or E2M1 codes, one scale a group. What they
// compute is in simd/groups.hpp.
#pragma once

#include <cstdint>

#include "numeric.hpp"

namespace di {

// How a vector of values is stored as codes and scales.
enum class GroupFormat { fp8 = 0, fp4 = 1, mxfp4 = 2 };

constexpr int64_t group_size(GroupFormat format) { return format == GroupFormat::fp4 ? 16 : 32; }
constexpr int64_t code_bytes(GroupFormat format, int64_t dim) {
  return format == GroupFormat::fp8 ? dim : dim / 2;
}

// Values of one vector of `dim` values.
void decode_groups(GroupFormat format, const uint8_t* codes, const uint8_t* scales, int64_t dim, float* x);

// Replaces every group of 32 values by what a reader of its FP8 codes sees (activation quantization,
// backbone 2.3).
void round_trip_fp8(float* x, int64_t dim);

// The same for rows of x [rows, dim] into y, which may be x.
template <class T>
void round_trip_fp8_rows(const T* x, int64_t rows, int64_t dim, T* y);

// Rows of codes and scales of x [rows, dim]; rows are contiguous. A group with a NaN gets a NaN scale and
// codes of zero; so does a group with an infinity where the scale is UE8M0. FP4 saturates infinities to its
// largest value, 2688.
template <class T>
void encode(GroupFormat format, const T* x, int64_t rows, int64_t dim, uint8_t* codes, uint8_t* scales);

// x [rows, dim] of rows of codes and scales that are `code_stride` and `scale_stride` bytes apart.
template <class T>
void decode(GroupFormat format, const uint8_t* codes, int64_t code_stride, const uint8_t* scales,
            int64_t scale_stride, int64_t rows, int64_t dim, T* x);

}  // namespace di
