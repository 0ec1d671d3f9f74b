// What one step carries from layer to layer besides the residual trunk, and where the caches are.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/cache.hpp"
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

// Records at (outer[r], inner[r]) of a grid, with scales in a grid of their own, or (null) behind the values.
inline RecordTarget stored_at(const RecordGrid& values, const RecordGrid* scales, const int32_t* outer,
                              const int32_t* inner) {
  RecordTarget target{};
  target.format = values.format;
  target.values = const_cast<uint8_t*>(values.data);
  target.outer_stride = values.outer_stride;
  target.inner_stride = values.inner_stride;
  target.outer = outer;
  target.inner = inner;
  if (scales == nullptr || scales->data == nullptr) return target;
  target.scales = const_cast<uint8_t*>(scales->data);
  target.scale_outer_stride = scales->outer_stride;
  target.scale_inner_stride = scales->inner_stride;
  return target;
}

}  // namespace di::plan
