// Products of rows with groups of a packed weight (weight_layout.hpp, cpu/linear.hpp). Inputs are blocked:
// block b of row m lies at (b * rows + m) * 32.
#pragma once

#include <cstdint>

#include "isa.hpp"
#include "simd/later_lines.hpp"
#include "weight_layout.hpp"

namespace di::linear_simd {

constexpr int64_t kTileGroups = 2;  // groups that share the loads of the inputs

// Blocks of a group: its codes and scale bytes, packed or as stored, and what the thread reads behind them.
// Bytes `ahead` of those that are computed with are asked for; with the first of groups `later` too, as much
// of it as there are steps for.
struct Codes {
  const uint8_t *codes, *scales, *next;
  int64_t ahead;
  LaterLines later = {};
};

// One narrow row as float32, and the scales of MXFP4 that may be applied to its sums: those of the bytes from
// least_scale on, so many.
struct OneRow {
  const float* x;
  uint32_t least_scale, scales;
};

constexpr int64_t kAnyBytes = int64_t{1} << 62;

struct Table {
  int64_t row_block;  // input rows that are held in blocks at once

  // Narrow inputs that a cache holds which keeps up with the products; any number where one behind it does
  // too. Larger ones meet the groups in parts of so many bytes, and as many groups at once as total_bytes
  // hold.
  int64_t input_bytes, part_bytes, total_bytes;

  // totals[group][m][16] += rows . blocks of `count` <= kTileGroups packed groups, whose totals are `rows`
  // rows apart. x: [blocks][x_rows][32], of which the first `rows` count. Narrow: bfloat16 rows, a format
  // that is not float32, under FlushedSubnormals.
  void (*narrow)(WeightFormat format, const Codes* groups, int64_t count, int64_t blocks, const uint16_t* x,
                 int64_t x_rows, int64_t rows, float* totals);
  void (*wide)(WeightFormat format, const Codes* groups, int64_t count, int64_t blocks, const float* x,
               int64_t x_rows, int64_t rows, float* totals);

  // A weight as stored is read in place, where its inputs are in lanes (simd/stored_linear.hpp), for at most
  // lane_rows rows, and by few_stored for at most few_stored_rows; for more it is packed first.
  int64_t lane_rows, few_stored_rows;

  // The narrow product with one group of 16 rows as stored, `row_bytes` apart, the codes of the first one
  // given; whole blocks. Scale bytes as in the packed layout.
  void (*few_stored)(WeightFormat format, const Codes& group, int64_t row_bytes, int64_t blocks,
                     const uint16_t* x, int64_t x_rows, int64_t rows, float* totals);

  // One row, where there is a way for it that is faster, else null: widen_row() brings it into `room` of 32
  // numbers a block, one_row() is `narrow` for packed groups behind each other, one_stored_row() few_stored.
  OneRow (*widen_row)(const uint16_t* x, int64_t blocks, float* room) = nullptr;
  void (*one_row)(WeightFormat format, const uint8_t* group, int64_t groups, int64_t blocks,
                  const OneRow& row, float* totals) = nullptr;
  void (*one_stored_row)(WeightFormat format, const Codes& group, int64_t row_bytes, int64_t blocks,
                         const OneRow& row, float* totals) = nullptr;

  // y[m][0..count) = rounded totals of m, which are `stride` apart, count <= 16; any NaN becomes the positive
  // quiet one. Reads whole vectors: 16 totals for each m.
  void (*store_bf16)(const float* totals, int64_t stride, int64_t rows, int64_t count, uint16_t* y,
                     int64_t y_stride);
  void (*store_float)(const float* totals, int64_t stride, int64_t rows, int64_t count, float* y,
                      int64_t y_stride);
};
DI_AMX_FAMILY

}  // namespace di::linear_simd
