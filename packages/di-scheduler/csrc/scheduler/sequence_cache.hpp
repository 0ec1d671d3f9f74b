// What sequences hold of the two pools.
#pragma once

#include <cstdint>

#include "scheduler/block_pool.hpp"
#include "scheduler/sequence.hpp"
#include "scheduler/types.hpp"

namespace di::scheduler {

// The only place where blocks and state slots change hands. A sequence owns a slot from open() to release().
class SequenceCache {
 public:
  explicit SequenceCache(const Config& config)
      : config_(config), blocks_(config.num_blocks), slots_(config.num_slots) {}

  const BlockPool& blocks() const { return blocks_; }
  const BlockPool& slots() const { return slots_; }

  // Gives the sequence a state slot.
  void open(Sequence& sequence);

  // Extends the block table so that the next `rows` positions have a place, taking free blocks only where the
  // table is too short. Returns how many of the rows fit; 0 when not even one does.
  std::int32_t grow(Sequence& sequence, std::int32_t rows);

  // Gives everything back. Harmless when nothing is held.
  void release(Sequence& sequence);

 private:
  const Config& config_;
  BlockPool blocks_;
  BlockPool slots_;
};

}  // namespace di::scheduler
