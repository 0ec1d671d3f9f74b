// Sparse latent attention with a sink (attention specification, 10): one key vector, also the value, for all
// heads.
#pragma once

#include <cstdint>

#include "cpu/records.hpp"
#include "numeric.hpp"

namespace di {

// Shape of one call: q and out are [rows, heads, dim], contiguous.
struct AttentionShape {
  int64_t rows, heads, dim;
};

// Window keys of each row, positions begin..end-1: before `split` in ring cell (position % cells) of the
// row's slot, from `split` on in row fresh_start + (position - split) of this step's records (a grid with one
// outer element). They take the first columns of the pieces; entries start at column `width`, whether the
// window is full or not.
struct WindowKeys {
  RecordGrid ring, fresh;
  const int32_t *slot, *split, *fresh_start, *begin, *end;
  int64_t width;
};

// Selected entries of each row, a negative one leaves its column empty; entry e is in
// pages(block_table[sequence][e / inner], e % inner).
struct EntryKeys {
  RecordGrid pages;
  const int32_t* block_table;
  int64_t sequences, table_width;
  const int32_t* sequence;
  const int32_t* selected;
  int64_t count;  // columns of `selected`
};

// Rotates the last `dim` elements of every output vector back by the table row of its row's position, after
// it was rounded to T: apply_rope(.., inverse) in place.
struct OutputRope {
  const int32_t* positions;  // [rows], rows of the table
  const float* table;
  int64_t dim;
};

// Both throw std::out_of_range for an index outside its array, before anything is computed.
// `entries` and `rope` may be null. T is the type of q and what keys are decoded to. A row's cost follows
// from its keys alone, wherever they lie.
template <class T>
void sparse_attention(const AttentionShape& shape, const T* q, const WindowKeys& window,
                      const EntryKeys* entries, const float* sink, float scale, T* out,
                      const OutputRope* rope = nullptr);

// keys: one outer element with n records; index [rows, width], a negative one leaves its column of the pieces
// empty.
template <class T>
void gathered_attention(const AttentionShape& shape, const T* q, const RecordGrid& keys, const int32_t* index,
                        int64_t width, const float* sink, float scale, T* out);

}  // namespace di
