#include "plan/attention.hpp"

#include "cpu/attention.hpp"
#include "cpu/rope.hpp"

namespace di::plan {

int64_t WindowPlan::record_bytes(const CacheViews& cache) const {
  const RecordFormat format = cache.layers[layer].window.format;
  return value_bytes(format, wkv.weight.n) + scale_bytes(format, wkv.weight.n);
}

template <class T>
void WindowPlan::records(const Input<T>& x, Step<T>& step, uint8_t* fresh) const {
  Workspace& work = step.work;
  const Workspace::Scope scope(work);
  const int64_t rows = step.rows.rows, dim = wkv.weight.n;
  T* projected = work.take<T>(rows * dim);
  project(x, rows, wkv, projected);
  const RecordGrid grid = fresh_grid(fresh, rows, step.cache);
  store_keys<T>(projected, rows, dim, norm.weights(), rope.at(step.rows.positions.data()),
                stored_at(grid, nullptr, nullptr, nullptr), nullptr);
}

RecordGrid WindowPlan::fresh_grid(const uint8_t* fresh, int64_t rows, const CacheViews& cache) const {
  return {fresh, cache.layers[layer].window.format, 1, rows, 0, record_bytes(cache)};
}

void WindowPlan::store(const uint8_t* fresh, const StepRows& rows, const CacheViews& cache) const {
  const RingStores& stores = rows.window_store;
  const RecordGrid& ring = cache.layers[layer].window;
  store_ring(fresh, record_bytes(cache), stores.row.data(), stores.slot.data(), stores.cell.data(),
             stores.size(), const_cast<uint8_t*>(ring.data), ring.outer_stride, ring.inner_stride);
}

template <class T>
void AttentionPlan::run(const Input<T>& x, Step<T>& step, T* y) const {
  Workspace& work = step.work;
  const Workspace::Scope scope(work);
  const int64_t rows = step.rows.rows;
  T* projected = work.take<T>(rows * q_norm.dim);
  uint8_t* fresh = work.take<uint8_t>(rows * window.record_bytes(step.cache));
  project(x, rows, wq_a, projected);
  const Input<T> q_latent = q_norm.input(projected, rows, work);
  window.records(x, step, fresh);
  if (kv_layer >= 0) select(x.plain, q_latent, step);
  attend(q_latent, fresh, step, y);
  window.store(fresh, step.rows, step.cache);
}

// Writes what the layer owns of the compressed caches and selects.
template <class T>
void AttentionPlan::select(const T* x, const Input<T>& q_latent, Step<T>& step) const {
  const LayerCache& cache = step.cache.layers[window.layer];
  if (compressor) compressor->run(x, window.rope, cache, step);
  if (index_keys) index_keys->run(window.rope, cache, step);
  if (indexer) indexer->run(x, q_latent, window.rope, step);
  if (recent_topk > 0) select_recent(step.rows.entries(ratio), recent_topk, step.selected);
}

// Queries from their latent, attention, and the grouped low-rank output projection.
template <class T>
void AttentionPlan::attend(const Input<T>& q_latent, const uint8_t* fresh, Step<T>& step, T* y) const {
  Workspace& work = step.work;
  const Workspace::Scope scope(work);
  const StepRows& r = step.rows;
  const int64_t rows = r.rows, dim = window.wkv.weight.n;
  const RopeTable& rope = window.rope;
  T* q = work.take<T>(rows * heads * dim);
  T* out = work.take<T>(rows * heads * dim);
  T* low_rank = work.take<T>(rows * wo_a.n);
  project(q_latent, rows, wq_b, q);
  apply_rope<T>(q, r.positions.data(), rope.data, q, rows, heads, dim, rope.dim, false);

  const WindowKeys keys{step.cache.layers[window.layer].window,
                        window.fresh_grid(fresh, rows, step.cache),
                        r.slot.data(),
                        r.split.data(),
                        r.fresh_start.data(),
                        r.begin.data(),
                        r.window_end.data(),
                        step.window_columns};
  EntryKeys entries{};
  if (kv_layer >= 0) {
    entries = {step.cache.layers[kv_layer].entries,
               r.block_table,
               r.sequences,
               r.table_width,
               r.sequence.data(),
               step.selected.entries,
               step.selected.width};
  }
  const EntryKeys* more = kv_layer >= 0 ? &entries : nullptr;
  const OutputRope back{r.positions.data(), rope.data, rope.dim};
  sparse_attention<T>({rows, heads, dim}, q, keys, more, sink.data(), scale, out, &back);
  grouped_linear<T>(out, rows, groups, wo_a, low_rank);
  project(low_rank, rows, wo_b, y);
}

template void WindowPlan::records<float>(const Input<float>&, Step<float>&, uint8_t*) const;
template void WindowPlan::records<bf16>(const Input<bf16>&, Step<bf16>&, uint8_t*) const;
template void AttentionPlan::run<float>(const Input<float>&, Step<float>&, float*) const;
template void AttentionPlan::run<bf16>(const Input<bf16>&, Step<bf16>&, bf16*) const;

}  // namespace di::plan
