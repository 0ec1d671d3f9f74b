#include "cpu/formats.hpp"

#include <algorithm>
#include <vector>

#include "cpu/reduce.hpp"
#include "parallel.hpp"

namespace di {
namespace {

// Bit pattern of the largest magnitude; a NaN is larger than every number.
inline uint32_t largest_magnitude(const float* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  }
  return largest;
}

constexpr uint32_t kInfinityBits = 0x7f800000u;

// Byte of the smallest power of two that is not below the positive number s; infinity gives the NaN byte.
inline uint8_t ceil_power_byte(float s) {
  return static_cast<uint8_t>(((std::bit_cast<uint32_t>(s) - 1) >> 23) + 1);
}

// 2^-e for the scale byte e + 127, which is within 1..253.
inline float reciprocal_scale(uint8_t byte) { return ue8m0_to_float(static_cast<uint8_t>(254 - byte)); }

inline void pack_e2m1(const uint8_t* code, int64_t n, uint8_t* packed) {
  for (int64_t i = 0; i < n / 2; ++i) packed[i] = static_cast<uint8_t>(code[2 * i] | code[2 * i + 1] << 4);
}

inline uint8_t encode_fp8_group(const float* x, uint8_t* codes) {
  const uint32_t largest = largest_magnitude(x, 32);
  std::memset(codes, 0, 32);
  if (largest >= kInfinityBits) return kUe8m0Nan;
  const uint8_t byte = ceil_power_byte(std::max(std::bit_cast<float>(largest), 1e-4f) / 448.0f);
  const float factor = reciprocal_scale(byte);
  for (int i = 0; i < 32; ++i) codes[i] = to_e4m3(x[i] * factor);
  return byte;
}

inline uint8_t encode_mxfp4_group(const float* x, uint8_t* codes) {
  const uint32_t largest = largest_magnitude(x, 32);
  std::memset(codes, 0, 16);
  if (largest >= kInfinityBits) return kUe8m0Nan;
  const uint8_t byte = ceil_power_byte(std::max(std::bit_cast<float>(largest), 6 * 0x1p-126f) / 6.0f);
  const float factor = reciprocal_scale(byte);
  uint8_t code[32];
  for (int i = 0; i < 32; ++i) code[i] = to_e2m1(x[i] * factor);
  pack_e2m1(code, 32, codes);
  return byte;
}

inline uint8_t encode_fp4_group(const float* x, uint8_t* codes) {
  const uint32_t largest = largest_magnitude(x, 16);
  std::memset(codes, 0, 8);
  if (largest > kInfinityBits) return kE4m3Nan;
  const float a = std::max(std::bit_cast<float>(largest), 6 * 0x1p-9f);
  const uint8_t byte = to_e4m3(std::min(a * (1.0f / 6.0f), 448.0f));
  const float scale = e4m3_to_float(byte);
  uint8_t code[16];
  for (int i = 0; i < 16; ++i) code[i] = to_e2m1(x[i] / scale);
  pack_e2m1(code, 16, codes);
  return byte;
}

inline void decode_e4m3(const uint8_t* __restrict codes, float scale, int64_t n, float* __restrict x) {
  for (int64_t i = 0; i < n; ++i) x[i] = e4m3_to_float(codes[i]) * scale;
}

inline void decode_e2m1(const uint8_t* __restrict codes, float scale, int64_t n, float* __restrict x) {
  for (int64_t i = 0; i < n / 2; ++i) {
    x[2 * i] = e2m1_to_float(codes[i]) * scale;
    x[2 * i + 1] = e2m1_to_float(static_cast<uint8_t>(codes[i] >> 4)) * scale;
  }
}

}  // namespace

DI_MULTIVERSION
void encode_groups(GroupFormat format, const float* x, int64_t dim, uint8_t* codes, uint8_t* scales) {
  if (format == GroupFormat::fp8) {
    for (int64_t g = 0; g < dim / 32; ++g) scales[g] = encode_fp8_group(x + 32 * g, codes + 32 * g);
  } else if (format == GroupFormat::mxfp4) {
    for (int64_t g = 0; g < dim / 32; ++g) scales[g] = encode_mxfp4_group(x + 32 * g, codes + 16 * g);
  } else {
    for (int64_t g = 0; g < dim / 16; ++g) scales[g] = encode_fp4_group(x + 16 * g, codes + 8 * g);
  }
}

DI_MULTIVERSION
void decode_groups(GroupFormat format, const uint8_t* codes, const uint8_t* scales, int64_t dim, float* x) {
  if (format == GroupFormat::fp8) {
    for (int64_t g = 0; g < dim / 32; ++g) {
      decode_e4m3(codes + 32 * g, ue8m0_to_float(scales[g]), 32, x + 32 * g);
    }
  } else if (format == GroupFormat::mxfp4) {
    for (int64_t g = 0; g < dim / 32; ++g) {
      decode_e2m1(codes + 16 * g, ue8m0_to_float(scales[g]), 32, x + 32 * g);
    }
  } else {
    for (int64_t g = 0; g < dim / 16; ++g) {
      decode_e2m1(codes + 8 * g, e4m3_to_float(scales[g]), 16, x + 16 * g);
    }
  }
}

DI_MULTIVERSION
void round_trip_fp8(float* x, int64_t dim) {
  for (int64_t g = 0; g < dim / 32; ++g) {
    uint8_t codes[32];
    const uint8_t scale = encode_fp8_group(x + 32 * g, codes);
    decode_e4m3(codes, ue8m0_to_float(scale), 32, x + 32 * g);
  }
}

template <class T>
void encode(GroupFormat format, const T* x, int64_t rows, int64_t dim, uint8_t* codes, uint8_t* scales) {
  const int64_t code_stride = code_bytes(format, dim), scale_stride = dim / group_size(format);
  parallel_for(rows, 8 * dim, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(dim));
    for (int64_t r = begin; r < end; ++r) {
      widen(x + r * dim, dim, row.data());
      encode_groups(format, row.data(), dim, codes + r * code_stride, scales + r * scale_stride);
    }
  });
}

template <class T>
void decode(GroupFormat format, const uint8_t* codes, int64_t code_stride, const uint8_t* scales,
            int64_t scale_stride, int64_t rows, int64_t dim, T* x) {
  parallel_for(rows, 2 * dim, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(dim));
    for (int64_t r = begin; r < end; ++r) {
      decode_groups(format, codes + r * code_stride, scales + r * scale_stride, dim, row.data());
      narrow(row.data(), dim, x + r * dim);
    }
  });
}

template void encode<float>(GroupFormat, const float*, int64_t, int64_t, uint8_t*, uint8_t*);
template void encode<bf16>(GroupFormat, const bf16*, int64_t, int64_t, uint8_t*, uint8_t*);
template void decode<float>(GroupFormat, const uint8_t*, int64_t, const uint8_t*, int64_t, int64_t, int64_t,
                            float*);
template void decode<bf16>(GroupFormat, const uint8_t*, int64_t, const uint8_t*, int64_t, int64_t, int64_t,
                           bf16*);

}  // namespace di
