// What one step carries from layer to layer besides the residual trunk, and where the caches are.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/records.hpp"
#include "plan/step_rows.hpp"
#include "plan/workspace.hpp"

namespace di::plan {

// Ring of a ratio-2 owner: float32 [slots, cells, 2, dim], component 0 the score, 1 the latent.
struct CompressRing {
  float* data = nullptr;
  int64_t slots = 0, cells = 0;
  int64_t slot_stride = 0, cell_stride = 0, part_stride = 0;  // elements
};

// Caches of one layer, read and written in place; data is null for what the layer does not own.
struct LayerCache {
  RecordGrid window, entries, index_values, index_scales;
  CompressRing compress;
};

// The pools behind a plan.
struct CacheViews {
  CacheSizes sizes;
  std::vector<LayerCache> layers;
};

// What a source has chosen for each row: [rows, width], ascending, then -1.
struct Selection {
  int32_t* entries = nullptr;
  int64_t width = 0;
};

template <class T>
struct Step {
  const StepRows& rows;
  const CacheViews& cache;
  Workspace& work;
  int64_t window_columns;   // columns that window keys take in attention
  Selection selected{};     // entries chosen by the latest index source
  Selection candidates{};   // candidate blocks of the candidate source
  T* latent = nullptr;      // un-rotated latents of the latest KV source's new entries
  T* features = nullptr;    // [rows, targets * dim] draft features, or null
  int64_t feature_row = 0;  // targets * dim
};

// Where a kernel writes a record that it reads as RecordGrid::at.
inline uint8_t* record_at(const RecordGrid& grid, int64_t i, int64_t j) {
  return const_cast<uint8_t*>(grid.at(i, j));
}

}  // namespace di::plan
