#include "plan/indexer.hpp"

#include <algorithm>

#include "cpu/indexer.hpp"
#include "cpu/rope.hpp"
#include "cpu/topk.hpp"

namespace di::plan {
namespace {

constexpr int64_t kScoresPerTile =
    1 << 22;  // held at once; rows are independent, so tiles change memory only

// Replaces vectors x [count, dim] by what a reader of their MXFP4 records sees.
void round_trip_mxfp4(bf16* x, int64_t count, int64_t dim, Workspace& work) {
  const Workspace::Scope scope(work);
  float* wide = work.take<float>(count * dim);
  uint8_t* codes = work.take<uint8_t>(count * dim);
  parallel_for(count, 16 * dim, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* row = wide + i * dim;
      uint8_t* code = codes + i * dim;
      uint8_t* scales = code + code_bytes(GroupFormat::mxfp4, dim);
      widen(x + i * dim, dim, row);
      encode_groups(GroupFormat::mxfp4, row, dim, code, scales);
      decode_groups(GroupFormat::mxfp4, code, scales, dim, row);
      narrow(row, dim, x + i * dim);
    }
  });
}

// Entries [rows, width] behind the columns that were chosen of them, in place of the columns.
void entries_of_columns(const int32_t* entries, int64_t width, int64_t rows, int64_t topk, int32_t* chosen) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = r * topk; i < (r + 1) * topk; ++i) {
      if (chosen[i] >= 0) chosen[i] = entries[r * width + chosen[i]];
    }
  }
}

}  // namespace

IndexerPlan::Limits IndexerPlan::limits(const StepRows& rows) const {
  const int64_t width = std::max<int64_t>(rows.entries(ratio).most_visible, 1);
  const int64_t size = std::min(block_size, width);
  return {width, std::min(topk, width), size, std::min(top_blocks, (width + size - 1) / size)};
}

template <class T>
void IndexerPlan::run(const T* x, const T* q_latent, const RopeTable& rope, Step<T>& step) const {
  Workspace& work = step.work;
  const Workspace::Scope scope(work);
  const int64_t rows = step.rows.rows;
  T* q = work.take<T>(rows * heads * dim);
  T* weights = work.take<T>(rows * heads);
  queries(x, q_latent, rope, step, q, weights);
  const Limits most = limits(step.rows);
  step.selected.width = most.topk;
  if (candidates == Candidates::source) step.candidates.width = most.top_blocks;
  const int64_t tile = std::max<int64_t>(1, kScoresPerTile / most.width);
  for (int64_t first = 0; first < rows; first += tile) {
    const int64_t count = std::min(tile, rows - first);
    select(q + first * heads * dim, weights + first * heads, first, count, most, step);
  }
}

template <class T>
void IndexerPlan::queries(const T* x, const T* q_latent, const RopeTable& rope, Step<T>& step, T* q,
                          T* weights) const {
  const int64_t rows = step.rows.rows;
  project(q_latent, rows, wq_b, q);
  apply_rope<T>(q, step.rows.positions.data(), rope.data, q, rows, heads, dim, rope.dim, false);
  if constexpr (sizeof(T) == sizeof(bf16)) round_trip_mxfp4(q, rows * heads, dim, step.work);
  linear<T, T>(x, rows, weights_proj, false, weights);
  for (int64_t i = 0; i < rows * heads; ++i) weights[i] = from_float<T>(to_float(weights[i]) * scale);
}

template <class T>
void IndexerPlan::select(const T* q, const T* weights, int64_t first, int64_t count, const Limits& most,
                         Step<T>& step) const {
  Workspace& work = step.work;
  const Workspace::Scope scope(work);
  const StepRows& rows = step.rows;
  const LayerCache& keys = step.cache.layers[key_layer];
  const IndexPages pages{keys.index_values, keys.index_scales, rows.block_table,
                         rows.sequences,    rows.table_width,  rows.sequence.data() + first};
  const int32_t* visible = rows.entries(ratio).visible.data() + first;
  int32_t* selected = step.selected.entries + first * most.topk;
  int32_t* blocks = step.candidates.entries + first * step.candidates.width;
  if (candidates != Candidates::consumer) {
    const int64_t width = *std::max_element(visible, visible + count);
    float* scores = work.take<float>(count * width);
    index_scores<T>({count, heads, dim}, q, weights, pages, {visible, nullptr, width}, scores);
    if (candidates == Candidates::source) {
      candidate_blocks(scores, width, count, width, visible, most.block_size, most.top_blocks, blocks);
    }
    topk_indices(scores, width, count, width, visible, most.topk, selected);
    return;
  }
  const int64_t width = most.top_blocks * most.block_size;
  int32_t* entries = work.take<int32_t>(count * width);
  int32_t* present = work.take<int32_t>(count);
  float* scores = work.take<float>(count * width);
  candidate_entries(blocks, count, most.top_blocks, visible, most.block_size, entries);
  for (int64_t r = 0; r < count; ++r) {
    const int32_t* row = entries + r * width;
    present[r] = static_cast<int32_t>(std::find(row, row + width, -1) - row);
  }
  index_scores<T>({count, heads, dim}, q, weights, pages, {visible, entries, width}, scores);
  topk_indices(scores, width, count, width, present, most.topk, selected);
  entries_of_columns(entries, width, count, most.topk, selected);
}

void select_recent(const EntryRows& entries, int64_t topk, Selection& selected) {
  selected.width = std::min(topk, std::max<int64_t>(entries.most_visible, 1));
  int32_t* out = selected.entries;
  for (const int32_t visible : entries.visible) {
    const int64_t first = std::max<int64_t>(visible - selected.width, 0);
    for (int64_t i = 0; i < selected.width; ++i) {
      *out++ = first + i < visible ? static_cast<int32_t>(first + i) : -1;
    }
  }
}

template void IndexerPlan::run<float>(const float*, const float*, const RopeTable&, Step<float>&) const;
template void IndexerPlan::run<bf16>(const bf16*, const bf16*, const RopeTable&, Step<bf16>&) const;

}  // namespace di::plan
