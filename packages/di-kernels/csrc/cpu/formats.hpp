// E4M3 and E2M1 codes and the three group quantizers (cache specification, 4). All arithmetic is exact or a
// single IEEE operation, and nothing relies on subnormals of float32 (a host program may flush them).
#pragma once

#include <cstdint>
#include <cstring>

#include "numeric.hpp"

namespace di {

// How a vector of values is stored as codes and scales.
enum class GroupFormat { fp8 = 0, fp4 = 1, mxfp4 = 2 };

constexpr int64_t group_size(GroupFormat format) { return format == GroupFormat::fp4 ? 16 : 32; }
constexpr int64_t code_bytes(GroupFormat format, int64_t dim) {
  return format == GroupFormat::fp8 ? dim : dim / 2;
}

constexpr uint8_t kE4m3Nan = 0x7f;
constexpr uint8_t kUe8m0Nan = 0xff;

// `a` where the condition holds, else `b`, without a branch: compilers vectorize loops over it.
inline uint32_t select_bits(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}

inline float e4m3_to_float(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f;
  const uint32_t normal = (magnitude << 20) + (120u << 23);
  uint32_t bits = select_bits(magnitude < 8, std::bit_cast<uint32_t>(subnormal), normal);
  bits = select_bits(magnitude == 0x7f, 0x7fc00000u, bits);
  return std::bit_cast<float>(bits | (code & 0x80u) << 24);
}

// Nearest, ties to even, saturating at 448 (infinities too); a NaN stays a NaN.
inline uint8_t to_e4m3(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = u & 0x7fffffffu;
  // Below 2^-6 codes are multiples of 2^-9: adding 2^14 rounds there, in the low bits of the sum.
  const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0x1p14f);
  const uint32_t rounded_up = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  const uint32_t normal = (rounded_up >> 20) - (120u << 3);
  uint32_t code = select_bits(magnitude < std::bit_cast<uint32_t>(0x1p-6f), subnormal, normal);
  code = select_bits(magnitude > std::bit_cast<uint32_t>(448.0f), 0x7eu, code);
  code = select_bits(magnitude > 0x7f800000u, kE4m3Nan, code);
  return static_cast<uint8_t>(code | (u >> 24 & 0x80u));
}

// The four low bits of `code`; magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6.
inline float e2m1_to_float(uint8_t code) {
  const uint32_t magnitude = code & 7u;
  const uint32_t normal = (magnitude << 22) + (126u << 23);
  const uint32_t zero_or_half = magnitude * std::bit_cast<uint32_t>(0.5f);
  const uint32_t bits = select_bits(magnitude < 2, zero_or_half, normal);
  return std::bit_cast<float>(bits | (code & 8u) << 28);
}

// Nearest, ties to the even code, saturating at 6; the sign of zero is kept. `x` is not a NaN.
inline uint8_t to_e2m1(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  const float a = std::bit_cast<float>(u & 0x7fffffffu);
  const uint32_t code = static_cast<uint32_t>(a > 0.25f) + static_cast<uint32_t>(a >= 0.75f) +
                        static_cast<uint32_t>(a > 1.25f) + static_cast<uint32_t>(a >= 1.75f) +
                        static_cast<uint32_t>(a > 2.5f) + static_cast<uint32_t>(a >= 3.5f) +
                        static_cast<uint32_t>(a > 5.0f);
  return static_cast<uint8_t>(code | (u >> 28 & 8u));
}

// Codes and scales of one vector of `dim` values. A group with a NaN gets a NaN scale and codes of zero; so
// does a group with an infinity where the scale is UE8M0. FP4 saturates infinities to its largest value,
// 2688.
void encode_groups(GroupFormat format, const float* x, int64_t dim, uint8_t* codes, uint8_t* scales);

// Values of one vector of `dim` values.
void decode_groups(GroupFormat format, const uint8_t* codes, const uint8_t* scales, int64_t dim, float* x);

// Replaces every group of 32 values by what a reader of its FP8 codes sees (activation quantization,
// backbone 2.3).
void round_trip_fp8(float* x, int64_t dim);

// The same for rows of x [rows, dim] into y, which may be x.
template <class T>
void round_trip_fp8_rows(const T* x, int64_t rows, int64_t dim, T* y);

// Rows of codes and scales of x [rows, dim]; rows are contiguous.
template <class T>
void encode(GroupFormat format, const T* x, int64_t rows, int64_t dim, uint8_t* codes, uint8_t* scales);

// x [rows, dim] of rows of codes and scales that are `code_stride` and `scale_stride` bytes apart.
template <class T>
void decode(GroupFormat format, const uint8_t* codes, int64_t code_stride, const uint8_t* scales,
            int64_t scale_stride, int64_t rows, int64_t dim, T* x);

}  // namespace di
