// A weight matrix, read where it lies: nothing is copied, aligned or written. It lies as the checkpoint
// stores it, row by row, or packed: in groups of 16 rows that kernels read as one stream.
#pragma once

#include <cstdint>

#include "numeric.hpp"

namespace di {

enum class WeightFormat { float32 = 0, bfloat16 = 1, fp8 = 2, mxfp4 = 3 };

// Element `i` of an array of T that starts at any byte address.
template <class T>
inline T load_unaligned(const uint8_t* base, int64_t i) {
  T value;
  __builtin_memcpy(&value, base + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

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

// Matrix [n, k]. As stored: rows of data and of scales are `row_bytes` and `scale_row_bytes` apart; FP8 has
// one scale row for 32 rows (checkpoint specification, 3.3), MXFP4 one for each row (3.4); both have one
// scale for 32 inputs. Packed: data holds the groups one behind the other, `scale` is null.
struct Weight {
  WeightFormat format;
  const uint8_t* data;
  int64_t row_bytes;
  const uint8_t* scale;
  int64_t scale_row_bytes;
  int64_t n, k;
  bool packed = false;
};

// Blocks begin..begin+count-1 of a group of a weight as stored, in the packed layout. `scales` gets the scale
// bytes of these blocks.
void pack_blocks(const Weight& weight, int64_t group, int64_t begin, int64_t count, uint8_t* codes,
                 uint8_t* scales);

// Their scale bytes alone: in `scales`, or where they lie if they lie as in the packed layout.
const uint8_t* pack_scales(const Weight& weight, int64_t group, int64_t begin, int64_t count,
                           uint8_t* scales);

// The whole matrix as stored to groups_of(n) * group_bytes(format, k) bytes.
void pack(const Weight& weight, uint8_t* out);

}  // namespace di
