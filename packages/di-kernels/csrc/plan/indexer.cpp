#include "plan/indexer.hpp"

#include <algorithm>

#include "cpu/rope.hpp"
#include "cpu/select.hpp"

namespace di::plan {
namespace {

// Replaces vectors x [count, dim] by what a reader of their MXFP4 records sees.
void round_trip_mxfp4(bf16* x, int64_t count, int64_t dim, Workspace& work) {
  const Workspace::Scope scope(work);
  const int64_t bytes = code_bytes(GroupFormat::mxfp4, dim), groups = dim / group_size(GroupFormat::mxfp4);
  auto *codes = work.take<uint8_t>(count * bytes), *scales = work.take<uint8_t>(count * groups);
  encode(GroupFormat::mxfp4, x, count, dim, codes, scales);
  decode(GroupFormat::mxfp4, codes, bytes, scales, groups, count, dim, x);
}

}  // namespace

IndexerPlan::Limits IndexerPlan::limits(const StepRows& rows) const {
  const int64_t width = std::max<int64_t>(rows.entries(ratio).most_visible, 1);
  const int64_t size = std::min(block_size, width);
  return {std::min(topk, width), size, std::min(top_blocks, (width + size - 1) / size)};
}

template <class T>
void IndexerPlan::run(const T* x, const Input<T>& q_latent, const RopeTable& rope, Step<T>& step) const {
  Workspace& work = step.work;
  const Workspace::Scope scope(work);
  const StepRows& rows = step.rows;
  T* q = work.take<T>(rows.rows * heads * dim);
  T* weights = work.take<T>(rows.rows * heads);
  queries(x, q_latent, rope, step, q, weights);
  const LayerCache& keys = step.cache.layers[key_layer];
  const IndexPages pages{keys.index_values, keys.index_scales, rows.block_table,
                         rows.sequences,    rows.table_width,  rows.sequence.data()};
  const Limits most = limits(rows);
  EntryChoice choice{};
  choice.visible = rows.entries(ratio).visible.data();
  choice.topk = most.topk;
  choice.selected = step.selected.entries;
  choice.block_size = most.block_size;
  step.selected.width = most.topk;
  if (candidates == Candidates::source) {
    step.candidates.width = most.top_blocks;
    choice.blocks = step.candidates.entries;
    choice.top_blocks = most.top_blocks;
  } else if (candidates == Candidates::consumer) {
    choice.candidates = step.candidates.entries;
    choice.candidate_count = step.candidates.width;
  }
  select_entries<T>({rows.rows, heads, dim}, q, weights, pages, choice);
}

template <class T>
void IndexerPlan::queries(const T* x, const Input<T>& q_latent, const RopeTable& rope, Step<T>& step, T* q,
                          T* weights) const {
  const int64_t rows = step.rows.rows;
  project(q_latent, rows, wq_b, q);
  apply_rope<T>(q, step.rows.positions.data(), rope.data, q, rows, heads, dim, rope.dim, false);
  if constexpr (sizeof(T) == sizeof(bf16)) round_trip_mxfp4(q, rows * heads, dim, step.work);
  linear<T, T>(x, rows, weights_proj, false, weights);
  for (int64_t i = 0; i < rows * heads; ++i) weights[i] = from_float<T>(to_float(weights[i]) * scale);
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

template void IndexerPlan::run<float>(const float*, const Input<float>&, const RopeTable&,
                                      Step<float>&) const;
template void IndexerPlan::run<bf16>(const bf16*, const Input<bf16>&, const RopeTable&, Step<bf16>&) const;

}  // namespace di::plan
