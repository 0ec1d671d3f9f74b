// Keys on their way into a cache: norm, rotation, quantization and store of a row while it is near.
#pragma once

#include <cstdint>

#include "cpu/norm.hpp"
#include "cpu/records.hpp"

namespace di {

// Rotation of the last `dim` elements of row r by table row positions[r]; table [.., dim], cosines then
// sines.
struct Rotation {
  const float* table;
  int64_t dim;
  const int32_t* positions;
};

// Where records go: row r to (outer[r], inner[r]) of nested arrays with any byte strides, to (0, r) where
// `outer` is null. Scales lie in arrays of their own, or (null) behind the values of their record.
struct RecordTarget {
  RecordFormat format;
  uint8_t* values;
  int64_t outer_stride, inner_stride;
  uint8_t* scales;
  int64_t scale_outer_stride, scale_inner_stride;
  const int32_t *outer, *inner;
};

// Stores rope(rms_norm(x)) as records, x [rows, dim]; both steps round to T. `normalised` [rows, dim], where
// not null, gets the rows before rotation.
template <class T>
void store_keys(const T* x, int64_t rows, int64_t dim, const NormWeight& norm, const Rotation& rotation,
                const RecordTarget& target, T* normalised);

// Copies record row[i] of `fresh` (records of `bytes` bytes) to (slot[i], cell[i]) of a ring.
void store_ring(const uint8_t* fresh, int64_t bytes, const int32_t* row, const int32_t* slot,
                const int32_t* cell, int64_t count, uint8_t* ring, int64_t slot_stride, int64_t cell_stride);

}  // namespace di
