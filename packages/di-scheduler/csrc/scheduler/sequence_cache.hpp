// What sequences hold of the two pools.
#pragma once

#include <cstdint>

#include "scheduler/block_pool.hpp"
#include "scheduler/sequence.hpp"
#include "scheduler/types.hpp"

namespace di::scheduler {

// Blocks and a slot to copy before the rows of the next step, for a sequence that was forked off.
struct CacheCopy {
  SequencePtr child;
  BlockId from_block, to_block;  // 0: the shared part ends at a block border
  BlockId from_slot, to_slot;
};

// The only place where blocks and state slots change hands. A sequence owns a slot from open() to release().
class SequenceCache {
 public:
  explicit SequenceCache(const Config& config)
      : config_(config), blocks_(config.num_blocks), slots_(config.num_slots) {}

  const BlockPool& blocks() const { return blocks_; }
  const BlockPool& slots() const { return slots_; }

  // Gives the sequence a state slot.
  void open(Sequence& sequence);

  // Of positions 0 .. end-1, how many the table holds or could hold with the free blocks.
  std::int64_t coverable(const Sequence& sequence, std::int64_t end) const;

  // Extends the table so that it holds positions 0 .. end-1, which must be coverable.
  void cover(Sequence& sequence, std::int64_t end);

  // How many of the sequence's blocks nobody else holds.
  std::int32_t num_exclusive(const Sequence& sequence) const;

  // Whether a fork that shares `computed` positions could be opened now.
  bool can_share(std::int32_t computed) const;

  // Gives the child the parent's full blocks among the first `computed` positions, and fresh ones for a tail
  // and the state. The sources of the copy keep one more reference until release_sources().
  CacheCopy share(const Sequence& parent, const SequencePtr& child, std::int32_t computed);
  void release_sources(const CacheCopy& copy);

  // Gives everything back. Harmless when nothing is held.
  void release(Sequence& sequence);

 private:
  const Config& config_;
  BlockPool blocks_;
  BlockPool slots_;
};

}  // namespace di::scheduler
