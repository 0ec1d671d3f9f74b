// Decoding of one cache record into float32 values: exact, every format (cache specification, 3 and 4).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "numeric.hpp"

namespace di {

enum class RecordFormat { kFp8, kFp4, kMxfp4, kFloat32, kBfloat16 };

constexpr float e4m3_to_float(uint8_t code) {
  const uint32_t exponent = (code >> 3) & 15u, mantissa = code & 7u;
  const uint32_t sign = uint32_t{code & 0x80u} << 24;
  if ((code & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                                        : std::bit_cast<float>((exponent + 120u) << 23 | mantissa << 20);
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

inline constexpr std::array<float, 256> kE4m3 = [] {
  std::array<float, 256> table{};
  for (int code = 0; code < 256; ++code) table[code] = e4m3_to_float(static_cast<uint8_t>(code));
  return table;
}();

inline constexpr std::array<float, 16> kE2m1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                                -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// Elements that share a scale; dim must be a multiple of it.
constexpr int64_t record_group(RecordFormat format) {
  switch (format) {
    case RecordFormat::kFp8:
    case RecordFormat::kMxfp4:
      return 32;
    case RecordFormat::kFp4:
      return 16;
    default:
      return 1;
  }
}

constexpr int64_t value_bytes(RecordFormat format, int64_t dim) {
  switch (format) {
    case RecordFormat::kFp8:
      return dim;
    case RecordFormat::kFloat32:
      return 4 * dim;
    case RecordFormat::kBfloat16:
      return 2 * dim;
    default:
      return dim / 2;
  }
}

constexpr int64_t scale_bytes(RecordFormat format, int64_t dim) {
  const bool plain = format == RecordFormat::kFloat32 || format == RecordFormat::kBfloat16;
  return plain ? 0 : dim / record_group(format);
}

// Values of one record; values and scales may lie apart and at any byte alignment.
inline void decode_record(RecordFormat format, const uint8_t* values, const uint8_t* scales, int64_t dim,
                          float* out) {
  const int64_t group = record_group(format);
  switch (format) {
    case RecordFormat::kFloat32:
      std::memcpy(out, values, static_cast<size_t>(dim) * sizeof(float));
      return;
    case RecordFormat::kBfloat16:
      for (int64_t i = 0; i < dim; ++i) {
        bf16 x;
        std::memcpy(&x, values + 2 * i, sizeof x);
        out[i] = to_float(x);
      }
      return;
    case RecordFormat::kFp8:
      for (int64_t g = 0; g < dim / group; ++g) {
        const float scale = ue8m0_to_float(scales[g]);
        for (int64_t i = g * group; i < (g + 1) * group; ++i) out[i] = kE4m3[values[i]] * scale;
      }
      return;
    case RecordFormat::kFp4:
    case RecordFormat::kMxfp4:
      for (int64_t g = 0; g < dim / group; ++g) {
        const float scale = format == RecordFormat::kFp4 ? kE4m3[scales[g]] : ue8m0_to_float(scales[g]);
        for (int64_t i = g * group / 2; i < (g + 1) * group / 2; ++i) {
          out[2 * i] = kE2m1[values[i] & 15] * scale;
          out[2 * i + 1] = kE2m1[values[i] >> 4] * scale;
        }
      }
      return;
  }
}

// Records in two nested arrays, read in place: [outer, inner] with any byte strides.
struct RecordGrid {
  const uint8_t* data = nullptr;
  RecordFormat format = RecordFormat::kFloat32;
  int64_t outer = 0, inner = 0;
  int64_t outer_stride = 0, inner_stride = 0;  // bytes

  const uint8_t* at(int64_t i, int64_t j) const { return data + i * outer_stride + j * inner_stride; }
};

}  // namespace di
