#include "cpu/cache.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "parallel.hpp"
#include "simd/formats.hpp"
#include "simd/norm.hpp"
#include "simd/rope.hpp"

namespace di {
namespace {

void store_plain(const float* x, int64_t dim, uint8_t* values) {
  std::memcpy(values, x, static_cast<size_t>(dim) * sizeof(float));
}

void store_plain(const bf16* x, int64_t dim, uint8_t* values) {
  for (int64_t i = 0; i < dim; ++i) {
    const float value = to_float(x[i]);
    std::memcpy(values + 4 * i, &value, sizeof value);
  }
}

template <class T>
void store_record(const T* x, int64_t dim, const RecordTarget& target, int64_t r) {
  const int64_t i = target.outer == nullptr ? 0 : target.outer[r];
  const int64_t j = target.outer == nullptr ? r : target.inner[r];
  uint8_t* values = target.values + i * target.outer_stride + j * target.inner_stride;
  if (target.format == RecordFormat::float32) return store_plain(x, dim, values);
  uint8_t* scales = target.scales == nullptr
                        ? values + value_bytes(target.format, dim)
                        : target.scales + i * target.scale_outer_stride + j * target.scale_inner_stride;
  const auto format = static_cast<int>(group_format(target.format));
  formats_simd::active().of<T>().encode[format](x, dim, values, scales);
}

}  // namespace

template <class T>
void store_keys(const T* x, int64_t rows, int64_t dim, const NormWeight& norm, const Rotation& rotation,
                const RecordTarget& target, T* normalised) {
  const auto rms_norm_row = norm_simd::active().of<T>().rms_norm;
  const auto rotate = rope_simd::active().of<T>().rotate;
  const int64_t plain = dim - rotation.dim, pairs = rotation.dim / 2;
  parallel_for(rows, 2 * kPerElement * dim, [&](int64_t begin, int64_t end) {
    thread_local std::vector<T> scratch;  // grows once
    scratch.resize(std::max(scratch.size(), static_cast<size_t>(dim)));
    T* row = scratch.data();
    for (int64_t r = begin; r < end; ++r) {
      rms_norm_row(x + r * dim, norm.weight, dim, norm.eps, row, nullptr);
      if (normalised != nullptr) std::copy_n(row, dim, normalised + r * dim);
      const float* angles = rotation.table + rotation.positions[r] * rotation.dim;
      rotate(row + plain, angles, angles + pairs, 1.0f, pairs, row + plain);
      store_record(row, dim, target, r);
    }
  });
}

void store_ring(const uint8_t* fresh, int64_t bytes, const int32_t* row, const int32_t* slot,
                const int32_t* cell, int64_t count, uint8_t* ring, int64_t slot_stride, int64_t cell_stride) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(ring + slot[i] * slot_stride + cell[i] * cell_stride, fresh + row[i] * bytes,
                static_cast<size_t>(bytes));
  }
}

template void store_keys<float>(const float*, int64_t, int64_t, const NormWeight&, const Rotation&,
                                const RecordTarget&, float*);
template void store_keys<bf16>(const bf16*, int64_t, int64_t, const NormWeight&, const Rotation&,
                               const RecordTarget&, bf16*);

}  // namespace di
