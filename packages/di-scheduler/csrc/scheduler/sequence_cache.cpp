#include "scheduler/sequence_cache.hpp"

#include <algorithm>
#include <span>

namespace di::scheduler {

void SequenceCache::open(Sequence& sequence) { sequence.slot = slots_.allocate(1).front(); }

std::int64_t SequenceCache::coverable(const Sequence& sequence, std::int64_t end) const {
  const auto held = static_cast<std::int64_t>(sequence.block_table.size());
  return std::min(end, (held + blocks_.num_free()) * config_.block_size);
}

void SequenceCache::cover(Sequence& sequence, std::int64_t end) {
  auto& table = sequence.block_table;
  const std::int32_t wanted = config_.blocks_for(end) - static_cast<std::int32_t>(table.size());
  if (wanted <= 0) return;
  const auto fresh = blocks_.allocate(wanted);
  table.insert(table.end(), fresh.begin(), fresh.end());
}

std::int32_t SequenceCache::num_exclusive(const Sequence& sequence) const {
  return static_cast<std::int32_t>(std::count_if(sequence.block_table.begin(), sequence.block_table.end(),
                                                 [this](BlockId id) { return blocks_.ref_count(id) == 1; }));
}

bool SequenceCache::can_share(std::int32_t computed) const {
  const bool has_tail = computed % config_.block_size != 0;
  return slots_.num_free() > 0 && slots_.num_used() < config_.max_num_seqs &&
         blocks_.num_free() >= (has_tail ? 1 : 0);
}

CacheCopy SequenceCache::share(const Sequence& parent, const SequencePtr& child, std::int32_t computed) {
  const auto full = static_cast<std::size_t>(computed / config_.block_size);
  const auto shared = std::span(parent.block_table).first(full);
  blocks_.pin(shared);
  child->block_table.assign(shared.begin(), shared.end());
  open(*child);
  CacheCopy copy{child, 0, 0, parent.slot, child->slot};
  slots_.pin({&copy.from_slot, 1});
  if (computed % config_.block_size != 0) {
    cover(*child, computed);
    copy.from_block = parent.block_table[full];
    copy.to_block = child->block_table[full];
    blocks_.pin({&copy.from_block, 1});
  }
  return copy;
}

void SequenceCache::release_sources(const CacheCopy& copy) {
  slots_.free({&copy.from_slot, 1});
  if (copy.from_block != 0) blocks_.free({&copy.from_block, 1});
}

void SequenceCache::release(Sequence& sequence) {
  blocks_.free(sequence.block_table);
  sequence.block_table.clear();
  if (sequence.slot != 0) slots_.free({&sequence.slot, 1});
  sequence.slot = 0;
}

}  // namespace di::scheduler
