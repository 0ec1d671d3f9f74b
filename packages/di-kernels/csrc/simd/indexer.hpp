// Loops of the indexer: a tile of 64 keys as columns, and the scores of all heads of a row over it.
#pragma once

#include <cstdint>

#include "isa.hpp"
#include "simd/later_lines.hpp"

namespace di::indexer_simd {

constexpr int64_t kColumns = 64;  // keys of a tile
constexpr int64_t kPairs = 16;    // 32 elements

// A tile of bfloat16 keys is [pairs, kColumns]: pair 4 o + s of a column holds the elements 8 o + s (low
// half) and 8 o + s + 4 of its key, filled up with zeros to a multiple of kPairs; so is a query
// [heads, pairs]. A tile of float32 keys is [dim, kColumns].
struct Table {
  // Keys of MXFP4 codes [dim / 2] and scales [dim / 32] at any address; dim is a multiple of 32.
  void (*decode_mxfp4)(const uint8_t* const* codes, const uint8_t* const* scales, int64_t dim,
                       uint32_t* tile);
  // out[c] = sum_h relu(q_h . key_c) * w_h, pair by pair (dot_bf16) and head by head; each dot, each product
  // and the sum are rounded to bfloat16. Subnormals are flushed. On amx a dot is added up as its tiles do
  // (amx/tiles.hpp), kPairs pairs at a time, and as much of `later` is asked for meanwhile as there are steps
  // for: asked for at once, keys would hold up those that are read.
  void (*scores_bf16)(const uint32_t* q, const float* weights, int64_t heads, int64_t pairs,
                      const uint32_t* tile, const LaterLines& later, float* out);
  // The same without rounding, one fused multiply-add an element.
  void (*scores_float)(const float* q, const float* weights, int64_t heads, int64_t dim, const float* tile,
                       float* out);
};
DI_AMX_FAMILY

}  // namespace di::indexer_simd
