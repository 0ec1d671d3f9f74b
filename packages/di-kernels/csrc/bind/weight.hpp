// Weights of Python, checked once and borrowed: format, matrix and scales of
// di_kernels.ops.linear.LinearWeight.
#pragma once

#include <nanobind/stl/optional.h>

#include <optional>

#include "bind/items.hpp"
#include "bind/tensor.hpp"
#include "cpu/weight.hpp"

namespace di::bind {

constexpr int64_t kMostWeights = int64_t{1} << 40;  // rows or columns of a matrix

inline WeightFormat format_of(int64_t format) {
  require(format >= 0 && format <= 3, "format must be 0 (float32), 1 (bfloat16), 2 (FP8) or 3 (MXFP4)");
  return static_cast<WeightFormat>(format);
}

// FP8 has scales of 32 rows and 32 columns, MXFP4 of 32 columns of a row.
inline void require_whole_scales(WeightFormat format, int64_t n, int64_t k) {
  const bool quantized = format == WeightFormat::fp8 || format == WeightFormat::mxfp4;
  require((!quantized || k % 32 == 0) && (format != WeightFormat::fp8 || n % 32 == 0),
          "a quantized weight must hold whole scale groups");
}

// A matrix as stored. The tensors must outlive the result.
inline Weight borrow_weight(WeightFormat format, const View& data,
                            const std::optional<View>& scale = std::nullopt) {
  Weight w{};
  w.format = format;
  const auto take = [&w](const auto& matrix, int64_t element_bytes, int64_t values_per_element) {
    w.data = reinterpret_cast<const uint8_t*>(matrix.data);
    w.row_bytes = matrix.stride[0] * element_bytes;
    w.n = matrix.shape[0];
    w.k = matrix.shape[1] * values_per_element;
  };
  if (w.format == WeightFormat::float32) {
    take(rows<float, 2>(data, "weight data"), 4, 1);
  } else if (w.format == WeightFormat::bfloat16) {
    take(rows<bf16, 2>(data, "weight data"), 2, 1);
  } else {
    take(rows<uint8_t, 2>(data, "weight data"), 1, w.format == WeightFormat::mxfp4 ? 2 : 1);
  }
  if (w.format == WeightFormat::float32 || w.format == WeightFormat::bfloat16) return w;
  require(scale.has_value(), "a quantized weight needs its scales");
  const int64_t rows_per_scale = w.format == WeightFormat::fp8 ? 32 : 1;
  require_whole_scales(w.format, w.n, w.k);
  const auto scales = rows<uint8_t, 2>(*scale, "weight scale", {w.n / rows_per_scale, w.k / 32});
  w.scale = scales.data;
  w.scale_row_bytes = scales.stride[0];
  return w;
}

// The same of a matrix of numbers, float32 or bfloat16.
inline Weight borrow_numbers(const View& data) {
  return borrow_weight(is<bf16>(data) ? WeightFormat::bfloat16 : WeightFormat::float32, data);
}

// A packed matrix [n, k]: groups of 16 rows, one a row of `data`.
inline Weight borrow_packed(WeightFormat format, const View& data, int64_t n, int64_t k) {
  require(n >= 0 && n <= kMostWeights && k >= 0 && k <= kMostWeights,
          "rows and columns of a packed weight must be 0 to 2^40");
  Weight w{};
  w.format = format;
  require_whole_scales(w.format, n, k);
  w.n = n;
  w.k = k;
  w.packed = true;
  w.data = dense<uint8_t, 2>(data, "packed weight data", {groups_of(n), group_bytes(w.format, k)}).data;
  return w;
}

// The tuple (format, packed, data, scale, rows, columns) of a LinearWeight.
inline Weight weight_of(const nb::tuple& tuple, const char* name) {
  static constexpr const char* kNames[] = {"format", "packed", "data", "scale", "rows", "columns"};
  const Items items(tuple, name, kNames);
  const WeightFormat format = format_of(items.integer(0, 0, 3));
  const bool packed = items.integer(1, 0, 1) != 0;
  const View data = items.tensor(2);
  const auto scale = items.tensor_or_none(3);
  const int64_t n = items.integer(4, 0, kMostWeights), k = items.integer(5, 0, kMostWeights);
  if (packed) return borrow_packed(format, data, n, k);
  const Weight weight = borrow_weight(format, data, scale);
  require(weight.n == n && weight.k == k, "weight data does not have this shape");
  return weight;
}

}  // namespace di::bind
