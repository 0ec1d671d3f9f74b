// A weight matrix, read where it lies: nothing is copied, aligned or written. It lies as the checkpoint
// stores it, row by row, or packed: in groups of 16 rows that kernels read as one stream.
#pragma once

#include <cstdint>

#include "numeric.hpp"
#include "weight_layout.hpp"

namespace di {

// Element `i` of an array of T that starts at any byte address.
template <class T>
inline T load_unaligned(const uint8_t* base, int64_t i) {
  T value;
  __builtin_memcpy(&value, base + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
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
