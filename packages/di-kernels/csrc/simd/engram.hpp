// Loops of the engram and embedding families.
#pragma once

#include "isa.hpp"
#include "numeric.hpp"
#include "simd/by_type.hpp"

namespace di::engram_simd {

template <class T>
struct Loops {
  // A row of n stored values at any byte address, converted to T.
  void (*from_f32)(const uint8_t* row, int64_t n, T* y);
  void (*from_b16)(const uint8_t* row, int64_t n, T* y);
  // out = round(query + gate * value) of one stream (backbone specification, 5.6); out may be query.
  void (*inject)(const T* query, const T* key, const T* value, const float* weight, float eps, int64_t dim,
                 T* out);
};

using Table = ByType<Loops>;
DI_SIMD_FAMILY

}  // namespace di::engram_simd
