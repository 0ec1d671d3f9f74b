// Tensors of cache records as grids that kernels read in place.
#pragma once

#include <string>
#include <utility>

#include "bind/tensor.hpp"
#include "cpu/records.hpp"

namespace di::bind {

inline RecordFormat record_format(const std::string& name) {
  if (name == "fp8") return RecordFormat::fp8;
  if (name == "fp4") return RecordFormat::fp4;
  if (name == "mxfp4") return RecordFormat::mxfp4;
  if (name == "float32") return RecordFormat::float32;
  throw nb::value_error(("entry format is " + name + "; allowed: fp8, fp4, mxfp4, float32").c_str());
}

// Grid over the first two dimensions of `array`, whose last one holds the elements of a record.
template <class T>
RecordGrid as_grid(const Array<T, 3>& array, RecordFormat format) {
  constexpr int64_t size = sizeof(T);
  return RecordGrid{reinterpret_cast<const uint8_t*>(array.data),
                    format,
                    array.shape[0],
                    array.shape[1],
                    array.stride[0] * size,
                    array.stride[1] * size};
}

template <class T>
Array<T, 3> with_outer(const Array<T, 2>& a) {
  return {a.data, {1, a.shape[0], a.shape[1]}, {0, a.stride[0], a.stride[1]}};
}

inline void require_width(const char* name, int64_t actual, int64_t expected) {
  if (actual == expected) return;
  throw nb::value_error((std::string(name) + " has records of " + std::to_string(actual) +
                         " elements, expected " + std::to_string(expected))
                            .c_str());
}

// Grids of the codes and the scales of records that keep them apart, `dim` elements each.
inline std::pair<RecordGrid, RecordGrid> split_grids(const View& values, const char* values_name,
                                                     const View& scales, const char* scales_name,
                                                     RecordFormat format, int64_t dim) {
  require_multiple("the dimension of a record", dim, record_group(format));
  const auto codes = rows<uint8_t, 3>(values, values_name, {kAny, kAny, value_bytes(format, dim)});
  const auto factors =
      rows<uint8_t, 3>(scales, scales_name, {codes.shape[0], codes.shape[1], scale_bytes(format, dim)});
  return {as_grid(codes, format), as_grid(factors, format)};
}

// Grid of whole records (values, then scales) of `dim` elements: uint8, or float32 for the float32 format.
// N is the rank of the tensor: 3 for [outer, inner, record], 2 for [inner, record].
template <int N>
RecordGrid record_grid(const View& v, const char* name, RecordFormat format, int64_t dim) {
  require_multiple("the dimension of a record", dim, record_group(format));
  const auto grid = [&]<class T>(T*, int64_t width) {
    const auto array = rows<T, N>(v, name);
    require_width(name, array.shape[N - 1], width);
    if constexpr (N == 2) {
      return as_grid(with_outer(array), format);
    } else {
      return as_grid(array, format);
    }
  };
  if (format == RecordFormat::float32) return grid(static_cast<float*>(nullptr), dim);
  return grid(static_cast<uint8_t*>(nullptr), value_bytes(format, dim) + scale_bytes(format, dim));
}

}  // namespace di::bind
