// Products of rows with groups of a packed weight (cpu/weight.hpp, cpu/linear.hpp). Inputs are blocked: block
// b of row m lies at (b * rows + m) * 32.
#pragma once

#include <cstdint>

#include "cpu/weight.hpp"
#include "isa.hpp"

namespace di::linear_simd {

constexpr int64_t kTileGroups = 2;  // groups that share the loads of the inputs

// Decoded blocks of a group, for many rows. Narrow: bfloat16 pairs [block][16][16 rows]; wide: float32
// [block][32][16 rows]. scale: float32 [block][16 rows], null where all are 1. The bytes at `next` are asked
// for while the product is computed, a few at a time: many at once would be waited for.
struct Decoded {
  const void* values;
  const float* scale;
  const uint8_t* next;
  int64_t next_bytes;
};

// Blocks of a group: its codes and scale bytes, packed or as stored, and what the thread reads behind them.
struct Codes {
  const uint8_t *codes, *scales, *next;
};

struct Table {
  int64_t few_rows, few_stored_rows;  // up to so many rows `few` and `few_stored` are the ones to take

  // totals[group][m][16] += bfloat16 rows . blocks of `count` <= kTileGroups packed groups, which are decoded
  // in registers. Under FlushedSubnormals. x: [blocks][x_rows][32], of which the first `rows` count.
  void (*few)(WeightFormat format, const Codes* groups, int64_t count, int64_t blocks, const uint16_t* x,
              int64_t x_rows, int64_t rows, float* totals);

  // The same for one group of 16 rows as stored, `row_bytes` apart, the codes of the first one given; whole
  // blocks. Scale bytes as in the packed layout.
  void (*few_stored)(WeightFormat format, const Codes& group, int64_t row_bytes, int64_t blocks,
                     const uint16_t* x, int64_t x_rows, int64_t rows, float* totals);

  // Blocks of a group for `narrow` (not float32) or `wide`.
  void (*decode_narrow)(WeightFormat format, const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                        void* values, float* scale);
  void (*decode_wide)(WeightFormat format, const uint8_t* codes, const uint8_t* scales, int64_t blocks,
                      void* values, float* scale);

  // totals[group][m][16] += rows . decoded blocks of `groups` <= kTileGroups groups, whose totals are `rows`
  // rows apart; `narrow` under FlushedSubnormals.
  void (*narrow)(const Decoded* decoded, int64_t groups, int64_t blocks, const uint16_t* x, int64_t x_rows,
                 int64_t rows, float* totals);
  void (*wide)(const Decoded* decoded, int64_t groups, int64_t blocks, const float* x, int64_t x_rows,
               int64_t rows, float* totals);

  // y[m][0..count) = rounded totals[m][0..count), count <= 16; any NaN becomes the positive quiet one. Reads
  // whole vectors: 16 totals from each totals[m] on.
  void (*store_bf16)(const float* totals, int64_t rows, int64_t count, uint16_t* y, int64_t y_stride);
  void (*store_float)(const float* totals, int64_t rows, int64_t count, float* y, int64_t y_stride);
};
DI_SIMD_FAMILY

}  // namespace di::linear_simd
