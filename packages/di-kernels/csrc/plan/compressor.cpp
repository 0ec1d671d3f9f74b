#include "plan/compressor.hpp"

#include <algorithm>
#include <utility>

#include "cpu/compress.hpp"
#include "cpu/rope.hpp"

namespace di::plan {
namespace {

using Place = std::pair<uint8_t*, uint8_t*>;  // values, scales

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
  const int64_t count = entries.size(), dim = wkv.n;
  T* pooled = work.take<T>((ratio == 1 ? step.rows.rows : count) * dim);
  float* wide = work.take<float>(count * dim);
  pool(x, cache.compress, step, pooled);
  norm(pooled, count, step.latent);
  T* entry = pooled;
  apply_rope<T>(step.latent, entries.rope_position.data(), rope.data, entry, count, 1, dim, rope.dim, false);
  write_records(cache.entries.format, entry, count, dim, wide, [&](int64_t i) {
    uint8_t* values = record_at(cache.entries, entries.block[i], entries.entry[i]);
    return Place(values, values + value_bytes(cache.entries.format, dim));
  });
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
  const int64_t count = entries.size(), dim = wk.n;
  T* projected = work.take<T>(count * dim);
  T* key = work.take<T>(count * dim);
  float* wide = work.take<float>(count * dim);
  linear<T, T>(step.latent, count, wk, false, projected);
  norm(projected, count, key);
  apply_rope<T>(key, entries.rope_position.data(), rope.data, projected, count, 1, dim, rope.dim, false);
  write_records(cache.index_values.format, projected, count, dim, wide, [&](int64_t i) {
    const bool plain = is_plain(cache.index_values.format);
    return Place(record_at(cache.index_values, entries.block[i], entries.entry[i]),
                 plain ? nullptr : record_at(cache.index_scales, entries.block[i], entries.entry[i]));
  });
}

template void CompressorPlan::run<float>(const float*, const RopeTable&, const LayerCache&,
                                         Step<float>&) const;
template void CompressorPlan::run<bf16>(const bf16*, const RopeTable&, const LayerCache&, Step<bf16>&) const;
template void IndexKeysPlan::run<float>(const RopeTable&, const LayerCache&, Step<float>&) const;
template void IndexKeysPlan::run<bf16>(const RopeTable&, const LayerCache&, Step<bf16>&) const;

}  // namespace di::plan
