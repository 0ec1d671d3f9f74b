#include "cpu/weight.hpp"

#include <algorithm>
#include <cstring>

#include "parallel.hpp"
#include "simd/pack.hpp"

namespace di {

const uint8_t* pack_scales(const Weight& weight, int64_t group, int64_t begin, int64_t count,
                           uint8_t* scales) {
  const int64_t first = group * kGroupRows;
  if (weight.format == WeightFormat::fp8) return weight.scale + first / 32 * weight.scale_row_bytes + begin;
  if (weight.format == WeightFormat::mxfp4) {
    const uint8_t* row[kGroupRows];
    for (int64_t r = 0; r < kGroupRows; ++r) {
      row[r] = weight.scale + std::min(first + r, weight.n - 1) * weight.scale_row_bytes + begin;
    }
    pack_simd::active().scales(row, count, scales);
  }
  return scales;
}

void pack_blocks(const Weight& weight, int64_t group, int64_t begin, int64_t count, uint8_t* codes,
                 uint8_t* scales) {
  const int64_t row_block = words_of_block(weight.format) * 4;  // bytes of a block in one row
  const uint8_t* row[kGroupRows];
  for (int64_t r = 0; r < kGroupRows; ++r) {
    const int64_t n = std::min(group * kGroupRows + r, weight.n - 1);
    row[r] = weight.data + n * weight.row_bytes + begin * row_block;
  }
  const auto& simd = pack_simd::active();
  const int64_t whole = std::min(count, weight.k / kBlock - begin);
  simd.blocks(weight.format, row, whole, codes);
  if (whole < count) {
    uint8_t padded[kGroupRows][kBlock * sizeof(float)] = {};
    const int64_t left = weight.k % kBlock * (row_block / kBlock);
    for (int64_t r = 0; r < kGroupRows; ++r) {
      std::memcpy(padded[r], row[r] + whole * row_block, static_cast<size_t>(left));
      row[r] = padded[r];
    }
    simd.blocks(weight.format, row, 1, codes + whole * block_bytes(weight.format));
  }
  const uint8_t* found = pack_scales(weight, group, begin, count, scales);
  if (found != scales) std::memcpy(scales, found, static_cast<size_t>(count * block_scales(weight.format)));
}

void pack(const Weight& weight, uint8_t* out) {
  const int64_t bytes = group_bytes(weight.format, weight.k), blocks = blocks_of(weight.k);
  const int64_t scales = scale_bytes(weight.format, weight.k);
  if (bytes == 0) return;  // there may be no memory to write to
  parallel_for(groups_of(weight.n), bytes, [&](int64_t first, int64_t last) {
    for (int64_t g = first; g < last; ++g) {
      uint8_t* group = out + g * bytes;
      std::memset(group, 0, static_cast<size_t>(scales));  // also what pads them
      pack_blocks(weight, g, 0, blocks, group + scales, group);
    }
  });
}

}  // namespace di
