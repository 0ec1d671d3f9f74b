// Reference-counted index allocator with a first-in-first-out free list.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/types.hpp"

namespace di::scheduler {

enum class AllocStatus : std::int8_t { kNever, kOk, kLater };

// Hands out the indices 1 .. num_blocks-1; index 0 is reserved for padding and never leaves the pool.
// It owns no memory: the same class serves cache blocks and state slots. The index freed first is reused
// first, so what was freed last stays intact longest. Every operation is O(1) per index and all or nothing:
// one that throws BlockPoolError has changed nothing.
class BlockPool {
 public:
  explicit BlockPool(std::int32_t num_blocks);

  // Takes `count` free indices, each with one reference, in the order of the free list.
  std::vector<BlockId> allocate(std::int32_t count);

  // Adds one reference per occurrence. Only live indices can be pinned.
  void pin(std::span<const BlockId> ids);

  // Drops one reference per occurrence, last entry first, so that the tail of a sequence is reused before its
  // head. An index without references left goes to the end of the free list.
  void free(std::span<const BlockId> ids);

  // kNever: more than the pool has at all; kOk: allocate(count) will succeed now; kLater: when others free.
  // Throws BlockPoolError for a negative count.
  AllocStatus can_allocate(std::int64_t count) const;

  std::int32_t num_blocks() const { return static_cast<std::int32_t>(nodes_.size()); }
  std::int32_t num_free() const { return num_free_; }
  std::int32_t num_used() const { return num_blocks() - 1 - num_free_; }
  std::int32_t ref_count(BlockId id) const;

  // The free list walked from either end, for tests and tools.
  std::vector<BlockId> free_list() const;
  std::vector<BlockId> free_list_backwards() const;

 private:
  // Node 0 is the sentinel of a circular list: its next is the head and its prev the tail.
  struct Node {
    std::int32_t ref_count = 0;
    BlockId next = 0;
    BlockId prev = 0;
  };

  void check_range(BlockId id, const char* operation) const;
  BlockId pop_front();
  void push_back(BlockId id);

  std::vector<Node> nodes_;
  std::int32_t num_free_ = 0;
};

}  // namespace di::scheduler
