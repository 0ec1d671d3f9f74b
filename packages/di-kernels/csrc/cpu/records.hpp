// One cache record as float32 values, whatever its format: exact (cache specification, 3 and 4).
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/formats.hpp"
#include "numeric.hpp"

namespace di {

// The quantized formats of GroupFormat, and plain values without scales.
enum class RecordFormat { fp8, fp4, mxfp4, float32, bfloat16 };

constexpr bool is_plain(RecordFormat format) {
  return format == RecordFormat::float32 || format == RecordFormat::bfloat16;
}

// Only for formats that are not plain.
constexpr GroupFormat group_format(RecordFormat format) {
  return format == RecordFormat::fp8   ? GroupFormat::fp8
         : format == RecordFormat::fp4 ? GroupFormat::fp4
                                       : GroupFormat::mxfp4;
}

// Elements that share a scale; the dimension must be a multiple of it.
constexpr int64_t record_group(RecordFormat format) {
  return is_plain(format) ? 1 : group_size(group_format(format));
}

constexpr int64_t value_bytes(RecordFormat format, int64_t dim) {
  if (format == RecordFormat::float32) return 4 * dim;
  if (format == RecordFormat::bfloat16) return 2 * dim;
  return code_bytes(group_format(format), dim);
}

constexpr int64_t scale_bytes(RecordFormat format, int64_t dim) {
  return is_plain(format) ? 0 : dim / record_group(format);
}

// Values of one record; values and scales may lie apart and at any byte alignment.
inline void decode_record(RecordFormat format, const uint8_t* values, const uint8_t* scales, int64_t dim,
                          float* out) {
  if (format == RecordFormat::float32) {
    std::memcpy(out, values, static_cast<size_t>(dim) * sizeof(float));
  } else if (format == RecordFormat::bfloat16) {
    for (int64_t i = 0; i < dim; ++i) {
      bf16 x;
      std::memcpy(&x, values + 2 * i, sizeof x);
      out[i] = to_float(x);
    }
  } else {
    decode_groups(group_format(format), values, scales, dim, out);
  }
}

// Records in two nested arrays, read in place: [outer, inner] with any byte strides.
struct RecordGrid {
  const uint8_t* data = nullptr;
  RecordFormat format = RecordFormat::float32;
  int64_t outer = 0, inner = 0;
  int64_t outer_stride = 0, inner_stride = 0;  // bytes

  const uint8_t* at(int64_t i, int64_t j) const { return data + i * outer_stride + j * inner_stride; }
};

}  // namespace di
