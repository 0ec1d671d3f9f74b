#include "scheduler/sequence_cache.hpp"

#include <algorithm>

namespace di::scheduler {

void SequenceCache::open(Sequence& sequence) { sequence.slot = slots_.allocate(1).front(); }

std::int32_t SequenceCache::grow(Sequence& sequence, std::int32_t rows) {
  auto& table = sequence.block_table;
  const auto held = static_cast<std::int32_t>(table.size());
  const std::int32_t wanted = config_.blocks_for(sequence.num_computed() + rows) - held;
  const std::int32_t taken = std::clamp(wanted, 0, blocks_.num_free());
  if (taken > 0) {
    const auto fresh = blocks_.allocate(taken);
    table.insert(table.end(), fresh.begin(), fresh.end());
  }
  const std::int64_t room = std::int64_t{held + taken} * config_.block_size - sequence.num_computed();
  return static_cast<std::int32_t>(std::min<std::int64_t>(rows, room));
}

void SequenceCache::release(Sequence& sequence) {
  blocks_.free(sequence.block_table);
  sequence.block_table.clear();
  if (sequence.slot != 0) slots_.free({&sequence.slot, 1});
  sequence.slot = 0;
}

}  // namespace di::scheduler
