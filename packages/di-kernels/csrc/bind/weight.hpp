// Weights of Python, checked once and borrowed: format, stored matrix and scales of
// di_kernels.ops.linear.LinearWeight.
#pragma once

#include <nanobind/stl/optional.h>

#include <optional>

#include "bind/tensor.hpp"
#include "cpu/weight.hpp"

namespace di::bind {

// The tensors must outlive the result.
inline Weight borrow_weight(int format, const View& data, const std::optional<View>& scale) {
  require(format >= 0 && format <= 3, "format must be 0 (float32), 1 (bfloat16), 2 (FP8) or 3 (MXFP4)");
  Weight w{};
  w.format = static_cast<WeightFormat>(format);
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
  const auto scales = rows<uint8_t, 2>(*scale, "weight scale");
  const int64_t rows_per_scale = w.format == WeightFormat::fp8 ? 32 : 1;
  require(w.k % 32 == 0 && w.n % rows_per_scale == 0, "a quantized weight must hold whole scale groups");
  require(scales.shape[0] == w.n / rows_per_scale && scales.shape[1] == w.k / 32,
          "weight data and weight scale: shapes do not agree");
  w.scale = scales.data;
  w.scale_row_bytes = scales.stride[0];
  return w;
}

}  // namespace di::bind
