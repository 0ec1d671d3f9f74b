// Producers of compressed entries and of the index keys made from them (attention specification, 7 and 8.1).
// Both write what a step completes before anything of the step reads it.
#pragma once

#include "plan/projection.hpp"
#include "plan/step.hpp"

namespace di::plan {

// Main compressed KV of a KV-source layer. It has a gate at ratio 2 only.
struct CompressorPlan {
  int64_t ratio = 0;
  Weight wkv{}, wgate{};
  Norm norm;

  // Stores the entries completed by rows x [rows, dim] and leaves their latents in the step.
  template <class T>
  void run(const T* x, const RopeTable& rope, const LayerCache& cache, Step<T>& step) const;

 private:
  template <class T>
  void pool(const T* x, const CompressRing& ring, Step<T>& step, T* pooled) const;
};

// Index keys of an index-key source, from the step's latents.
struct IndexKeysPlan {
  int64_t ratio = 0;
  Weight wk{};
  Norm norm;

  template <class T>
  void run(const RopeTable& rope, const LayerCache& cache, Step<T>& step) const;
};

}  // namespace di::plan
