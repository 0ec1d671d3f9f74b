#include "plan/compressor.hpp"

#include <algorithm>

#include "cpu/compress.hpp"

namespace di::plan {
namespace {

// fresh [2, rows, dim]: scores, then latents.
void store_pairs(const RingStores& stores, const float* fresh, int64_t rows, int64_t dim,
                 const CompressRing& ring) {
  for (int64_t i = 0; i < stores.size(); ++i) {
    float* cell = ring.data + stores.slot[i] * ring.slot_stride + stores.cell[i] * ring.cell_stride;
    for (int64_t part = 0; part < 2; ++part) {
      std::copy_n(fresh + (part * rows + stores.row[i]) * dim, dim, cell + part * ring.part_stride);
    }
  }
}

}  // namespace

template <class T>
void CompressorPlan::run(const T* x, const RopeTable& rope, const LayerCache& cache, Step<T>& step) const {
  Workspace& work = step.work;
  const Workspace::Scope scope(work);
  const EntryRows& entries = step.rows.entries(ratio);
  T* pooled = work.take<T>((ratio == 1 ? step.rows.rows : entries.size()) * wkv.n);
  pool(x, cache.compress, step, pooled);
  store_keys<T>(pooled, entries.size(), wkv.n, norm.weights(), rope.at(entries.rope_position.data()),
                stored_at(cache.entries, nullptr, entries.block.data(), entries.entry.data()), step.latent);
}

template <class T>
void CompressorPlan::pool(const T* x, const CompressRing& ring, Step<T>& step, T* pooled) const {
  const StepRows& rows = step.rows;
  if (ratio == 1) {
    linear<T, T>(x, rows.rows, wkv, false, pooled);
    return;
  }
  const int64_t dim = wkv.n;
  Workspace& work = step.work;
  float* fresh = work.take<float>(2 * rows.rows * dim);
  linear<T, float>(x, rows.rows, wgate, false, fresh);
  linear<T, float>(x, rows.rows, wkv, false, fresh + rows.rows * dim);
  const PartnerRows& partners = rows.partners;
  compress_pairs<T>({fresh, rows.rows, dim, rows.rows * dim},
                    {ring.data, ring.slots, ring.cells, ring.slot_stride, ring.cell_stride, ring.part_stride},
                    {rows.pairs.row.data(), partners.first.data(), partners.slot.data(), partners.cell.data(),
                     rows.pairs.size()},
                    dim, pooled);
  store_pairs(rows.compress_store, fresh, rows.rows, dim, ring);
}

template <class T>
void IndexKeysPlan::run(const RopeTable& rope, const LayerCache& cache, Step<T>& step) const {
  Workspace& work = step.work;
  const Workspace::Scope scope(work);
  const EntryRows& entries = step.rows.entries(ratio);
  T* projected = work.take<T>(entries.size() * wk.n);
  linear<T, T>(step.latent, entries.size(), wk, false, projected);
  store_keys<T>(
      projected, entries.size(), wk.n, norm.weights(), rope.at(entries.rope_position.data()),
      stored_at(cache.index_values, &cache.index_scales, entries.block.data(), entries.entry.data()),
      nullptr);
}

template void CompressorPlan::run<float>(const float*, const RopeTable&, const LayerCache&,
                                         Step<float>&) const;
template void CompressorPlan::run<bf16>(const bf16*, const RopeTable&, const LayerCache&, Step<bf16>&) const;
template void IndexKeysPlan::run<float>(const RopeTable&, const LayerCache&, Step<float>&) const;
template void IndexKeysPlan::run<bf16>(const RopeTable&, const LayerCache&, Step<bf16>&) const;

}  // namespace di::plan
