// Products of few bfloat16 rows with rows of a weight as stored (weight_layout.hpp, cpu/linear.hpp). The
// lanes of a vector are 16 blocks of one row, so that a row is read from end to end: 16 rows that are read
// side by side reach memory as 16 slow streams. What the blocks sum up to is turned afterwards, 16 rows at
// once.
#pragma once

#include <cstdint>

#include "isa.hpp"
#include "weight_layout.hpp"

namespace di::stored_linear_simd {

constexpr int64_t kLaneBlocks = 16;
constexpr int64_t kMaxInputs = 2;  // for more, what is turned afterwards costs more than turning the weights

// 16 rows of a weight: their codes, `row_bytes` apart, and their scale bytes as in the packed layout; and
// where the codes and the scale bytes lie that are read next.
struct Rows {
  const uint8_t* codes;
  int64_t row_bytes;
  const uint8_t *scales, *next, *next_scales;
  int64_t next_scale_bytes;
};

struct Table {
  // Blocked inputs [blocks][rows][32] to lanes: pairs [blocks / 16, rounded up][rows][16 pairs][16 lanes];
  // blocks that there are not are zero.
  void (*lanes)(const uint16_t* x, int64_t rows, int64_t blocks, uint32_t* out);

  // totals[m][16] += input m . blocks of 16 rows. Under FlushedSubnormals. x: lanes of the inputs.
  void (*add)(WeightFormat format, const Rows& weight, int64_t blocks, const uint32_t* x, int64_t rows,
              float* totals);
};
DI_SIMD_FAMILY

}  // namespace di::stored_linear_simd
