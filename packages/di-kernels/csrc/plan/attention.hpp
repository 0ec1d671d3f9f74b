// Attention sub-layer over the caches (attention specification, 4 to 6, 10 and 14).
#pragma once

#include <optional>
#include <vector>

#include "plan/compressor.hpp"
#include "plan/indexer.hpp"

namespace di::plan {

// What a layer's window keys are made with; a draft layer's context needs no more of it.
struct WindowPlan {
  int64_t layer = 0;  // whose ring holds them
  Projection wkv;
  Norm norm;
  RopeTable rope;

  // Cache records of rows x [rows, dim], back to back.
  template <class T>
  void records(const Input<T>& x, Step<T>& step, uint8_t* fresh) const;

  // Writes those of the step's last rows to the ring, after everything that reads it.
  void store(const uint8_t* fresh, const StepRows& rows, const CacheViews& cache) const;

  int64_t record_bytes(const CacheViews& cache) const;
  RecordGrid fresh_grid(const uint8_t* fresh, int64_t rows, const CacheViews& cache) const;
};

struct AttentionPlan {
  int64_t heads = 0, groups = 0;
  int64_t kv_layer = -1;    // whose entries the layer reads; -1: its window only
  int64_t recent_topk = 0;  // entries by position alone instead of an indexer's; 0: no such thing
  int64_t ratio = 0;
  WindowPlan window;
  Projection wq_a, wq_b, wo_b;
  Weight wo_a{};
  Norm q_norm;
  std::vector<float> sink;
  float scale = 0;
  std::optional<CompressorPlan> compressor;
  std::optional<IndexKeysPlan> index_keys;
  std::optional<IndexerPlan> indexer;

  // Attends with rows x [rows, dim] and stores their keys: y [rows, dim].
  template <class T>
  void run(const Input<T>& x, Step<T>& step, T* y) const;

 private:
  template <class T>
  void select(const T* x, const Input<T>& q_latent, Step<T>& step) const;
  template <class T>
  void attend(const Input<T>& q_latent, const uint8_t* fresh, Step<T>& step, T* y) const;
};

}  // namespace di::plan
