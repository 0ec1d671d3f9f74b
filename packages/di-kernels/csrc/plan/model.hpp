// A whole model bound to its weights: one call computes a step.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "cpu/sampling.hpp"
#include "plan/attention.hpp"
#include "plan/engram.hpp"
#include "plan/hyper.hpp"
#include "plan/moe.hpp"

namespace di::plan {

// One decoder layer.
struct LayerPlan {
  int64_t draft_feature = -1;  // where the mean of its trunk goes among the draft features; -1: nowhere
  HyperPlan attention_hyper, experts_hyper;
  Norm attention_norm, experts_norm;
  AttentionPlan attention;
  MoePlan experts;
  std::optional<EngramPlan> engram;

  template <class T>
  void run(Trunk<T>& trunk, Step<T>& step) const;

 private:
  template <class T>
  void run_attention(Trunk<T>& trunk, Step<T>& step) const;
  template <class T>
  void run_experts(Trunk<T>& trunk, Workspace& work) const;
};

// Keys of the backbone's rows in every draft layer's ring (backbone specification, 8.2).
struct DraftContextPlan {
  Projection main_proj;
  Norm main_norm;
  std::vector<WindowPlan> windows;

  template <class T>
  void run(Step<T>& step) const;
};

struct ModelPlan {
  Weight embed{}, head{};
  Norm norm;
  int64_t streams = 1;
  std::vector<LayerPlan> layers;
  std::optional<DraftContextPlan> draft;
  int64_t most_selected = 0, most_candidates = 0;  // of any layer
  int64_t entry_dim = 0;                           // of compressed entries

  int64_t dim() const { return embed.k; }
  int64_t feature_row() const { return draft ? draft->main_proj.weight.k : 0; }
  int64_t workspace_bytes() const { return work_.size(); }
  int64_t positions() const { return layers.front().attention.window.rope.positions; }

  // Computes the rows of a step and stores their keys and state in the caches. hidden [rows, dim] are output
  // rows, ready for logits; features [rows, feature_row()] are written where there is a draft model. Throws
  // what StepRows::build throws, before anything is computed.
  template <class T>
  void run(const StepInput& input, const CacheViews& cache, int64_t window_columns, T* hidden, T* features);

  // A step in which every row draws a token from its own logits, with parameters[row], at the position behind
  // it: tokens [rows], -1 where the logits are not finite. The same bits as run(), logits() and choose().
  template <class T>
  void draw(const StepInput& input, const CacheViews& cache, int64_t window_columns,
            const SamplingParameters* parameters, int32_t* tokens);

  // y [count, vocab] of rows index[i] of hidden [rows, dim], all in range; of the first ones where index is
  // null.
  template <class T>
  void logits(const T* hidden, const int64_t* index, int64_t count, float* y);

 private:
  int64_t prepare(const StepInput& input, const CacheViews& cache, int64_t window_columns);
  template <class T>
  void compute(const CacheViews& cache, int64_t window_columns, T* hidden, T* features);
  template <class T>
  Step<T> begin(const CacheViews& cache, int64_t window_columns, T* features);

  std::mutex one_step_;  // the rows and the workspace serve one step at a time
  StepRows rows_;
  Workspace work_;
};

}  // namespace di::plan
