// How weights are stored, and where the values of a packed one lie.
#pragma once

#include <cstdint>

namespace di {

enum class WeightFormat { float32 = 0, bfloat16 = 1, fp8 = 2, mxfp4 = 3 };

// The packed layout. A group holds 16 rows; a block, 32 inputs of them. A block is a sequence of vectors of
// 16 words of 32 bits, word r of row r. A word holds, in ascending order of the inputs,
//   float32   one value;
//   bfloat16  two values, the even input in the low half;
//   FP8       four codes: inputs 0, 2 in the low half, 1, 3 in the high half;
//   MXFP4     eight codes: inputs 0, 2, 4, 6 in the low half, 1, 3, 5, 7 in the high half.
// So a shift of the words brings the next pair of inputs to the low ends of their halves. A group begins with
// its scale bytes, padded to 64: MXFP4 16 for each block, FP8 one; so they are read before its blocks are.
// The last block is padded with zeros, the last group with copies of the last row.
constexpr int64_t kGroupRows = 16;
constexpr int64_t kBlock = 32;

constexpr int64_t blocks_of(int64_t k) { return (k + kBlock - 1) / kBlock; }
constexpr int64_t groups_of(int64_t n) { return (n + kGroupRows - 1) / kGroupRows; }
constexpr int64_t words_of_block(WeightFormat format) {
  return format == WeightFormat::float32    ? 32
         : format == WeightFormat::bfloat16 ? 16
         : format == WeightFormat::fp8      ? 8
                                            : 4;
}
constexpr int64_t block_bytes(WeightFormat format) { return words_of_block(format) * kGroupRows * 4; }
constexpr int64_t block_scales(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? kGroupRows : format == WeightFormat::fp8 ? 1 : 0;
}
constexpr int64_t scale_bytes(WeightFormat format, int64_t k) {  // of a group
  return (blocks_of(k) * block_scales(format) + 63) / 64 * 64;
}
constexpr int64_t group_bytes(WeightFormat format, int64_t k) {
  return scale_bytes(format, k) + blocks_of(k) * block_bytes(format);
}

}  // namespace di
