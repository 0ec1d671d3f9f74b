#include "plan/model.hpp"

#include <algorithm>

#include "cpu/embedding.hpp"
#include "cpu/range.hpp"

namespace di::plan {

template <class T>
void LayerPlan::run(Trunk<T>& trunk, Step<T>& step) const {
  if (engram) engram->run(trunk, step.rows, step.work);
  if (draft_feature >= 0 && step.features != nullptr) {
    Workspace& work = step.work;
    const Workspace::Scope scope(work);
    T* mean = work.take<T>(trunk.rows * trunk.dim);
    stream_mean<T>(trunk.stream, mean, trunk.rows, trunk.streams, trunk.dim);
    for (int64_t r = 0; r < trunk.rows; ++r) {
      T* place = step.features + r * step.feature_row + draft_feature * trunk.dim;
      std::copy_n(mean + r * trunk.dim, trunk.dim, place);
    }
  }
  run_attention(trunk, step);
  run_experts(trunk, step.work);
}

template <class T>
void LayerPlan::run_attention(Trunk<T>& trunk, Step<T>& step) const {
  Workspace& work = step.work;
  const Workspace::Scope scope(work);
  const Entered<T> entered = attention_hyper.enter(trunk, attention_norm, work);
  T* y = work.take<T>(trunk.rows * trunk.dim);
  attention.run(entered.x, step, y);
  leave(trunk, entered, static_cast<const T*>(y));
}

template <class T>
void LayerPlan::run_experts(Trunk<T>& trunk, Workspace& work) const {
  const Workspace::Scope scope(work);
  const Entered<T> entered = experts_hyper.enter(trunk, experts_norm, work);
  const auto outputs = experts.run(entered.x.plain, trunk.rows, work);
  leave(trunk, entered, outputs.shared, outputs.routed, experts.top_k);
}

template <class T>
void DraftContextPlan::run(Step<T>& step) const {
  Workspace& work = step.work;
  const Workspace::Scope scope(work);
  const int64_t rows = step.rows.rows;
  T* projected = work.take<T>(rows * main_norm.dim);
  project(step.features, rows, main_proj, projected);
  const Input<T> context = main_norm.input(projected, rows, work);
  for (const WindowPlan& window : windows) {
    const Workspace::Scope layer(work);
    uint8_t* fresh = work.take<uint8_t>(rows * window.record_bytes(step.cache));
    window.records(context, step, fresh);
    window.store(fresh, step.rows, step.cache);
  }
}

// What the layers hand on to each other, with room for the layer that needs the most.
template <class T>
Step<T> ModelPlan::begin(const CacheViews& cache, int64_t window_columns, T* features) {
  const int64_t entries = std::max({rows_.singles.most_visible, rows_.pairs.most_visible, int64_t{1}});
  Step<T> step{rows_, cache, work_, window_columns};
  step.selected.entries = work_.take<int32_t>(rows_.rows * std::min(most_selected, entries));
  step.candidates.entries = work_.take<int32_t>(rows_.rows * std::min(most_candidates, entries));
  step.latent = work_.take<T>(rows_.rows * entry_dim);
  step.features = features;
  step.feature_row = feature_row();
  return step;
}

// Expands a step into rows and checks them, before anything is computed; how many there are.
int64_t ModelPlan::prepare(const StepInput& input, const CacheViews& cache, int64_t window_columns) {
  rows_.build(input, cache.sizes);
  require_range("end of the positions", 0, rows_.end, 0, positions() + 1);
  // Entries come behind the columns of the window.
  for (int64_t r = 0; r < rows_.rows && entry_dim > 0; ++r) {
    require_range("number of window keys", r, rows_.window_end[r] - rows_.begin[r], 0, window_columns + 1);
  }
  work_.reset();
  return rows_.rows;
}

template <class T>
void ModelPlan::compute(const CacheViews& cache, int64_t window_columns, T* hidden, T* features) {
  const int64_t rows = rows_.rows;
  T* embedded = work_.take<T>(rows * dim());
  di::embed<T>(rows_.tokens, rows, embed, embedded);
  auto trunk = Trunk<T>::expand(embedded, rows, streams, dim(), work_);
  auto step = begin<T>(cache, window_columns, features);
  for (const LayerPlan& layer : layers) layer.run(trunk, step);
  if (draft) draft->run(step);
  hyper_collapse<T>(trunk.stream, trunk.pre, norm.weights(), rows, streams, dim(), hidden, nullptr);
}

template <class T>
void ModelPlan::run(const StepInput& input, const CacheViews& cache, int64_t window_columns, T* hidden,
                    T* features) {
  const std::lock_guard lock(one_step_);
  const DefaultArithmetic arithmetic;
  if (prepare(input, cache, window_columns) > 0) compute(cache, window_columns, hidden, features);
}

template <class T>
void ModelPlan::draw(const StepInput& input, const CacheViews& cache, int64_t window_columns,
                     const SamplingParameters* parameters, int32_t* tokens) {
  const std::lock_guard lock(one_step_);
  const DefaultArithmetic arithmetic;
  const int64_t rows = prepare(input, cache, window_columns);
  if (rows == 0) return;
  T *hidden = work_.take<T>(rows * dim()), *features = draft ? work_.take<T>(rows * feature_row()) : nullptr;
  compute(cache, window_columns, hidden, features);
  float* y = work_.take<float>(rows * head.n);
  linear<T, float>(hidden, rows, head, false, y);
  int64_t *positions = work_.take<int64_t>(rows), *drawn = work_.take<int64_t>(rows);
  bool* finite = work_.take<bool>(rows);
  for (int64_t r = 0; r < rows; ++r) positions[r] = int64_t{rows_.positions[r]} + 1;
  choose({y, rows, head.n, head.n}, nullptr, rows, parameters, positions, drawn, finite);
  for (int64_t r = 0; r < rows; ++r) tokens[r] = finite[r] ? static_cast<int32_t>(drawn[r]) : -1;
}

template <class T>
void ModelPlan::logits(const T* hidden, const int64_t* index, int64_t count, float* y) {
  const std::lock_guard lock(one_step_);
  const DefaultArithmetic arithmetic;
  if (index == nullptr) return linear<T, float>(hidden, count, head, false, y);
  work_.reset();
  T* chosen = work_.take<T>(count * dim());
  for (int64_t i = 0; i < count; ++i) std::copy_n(hidden + index[i] * dim(), dim(), chosen + i * dim());
  linear<T, float>(chosen, count, head, false, y);
}

template void ModelPlan::run<float>(const StepInput&, const CacheViews&, int64_t, float*, float*);
template void ModelPlan::run<bf16>(const StepInput&, const CacheViews&, int64_t, bf16*, bf16*);
template void ModelPlan::draw<float>(const StepInput&, const CacheViews&, int64_t, const SamplingParameters*,
                                     int32_t*);
template void ModelPlan::draw<bf16>(const StepInput&, const CacheViews&, int64_t, const SamplingParameters*,
                                    int32_t*);
template void ModelPlan::logits<float>(const float*, const int64_t*, int64_t, float*);
template void ModelPlan::logits<bf16>(const bf16*, const int64_t*, int64_t, float*);

}  // namespace di::plan
