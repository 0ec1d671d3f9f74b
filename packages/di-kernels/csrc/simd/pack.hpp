// Rows as stored to the packed layout of weight_layout.hpp.
#pragma once

#include <cstdint>

#include "isa.hpp"
#include "weight_layout.hpp"

namespace di::pack_simd {

struct Table {
  // `blocks` whole blocks of 16 rows. row: where the blocks begin in each row.
  void (*blocks)(WeightFormat format, const uint8_t* const* row, int64_t blocks, uint8_t* out);
  // Scale bytes of MXFP4: out[block][16] = row[0..16)[block].
  void (*scales)(const uint8_t* const* row, int64_t blocks, uint8_t* out);
};
DI_SIMD_FAMILY

}  // namespace di::pack_simd
