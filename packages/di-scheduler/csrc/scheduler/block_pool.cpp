#include "scheduler/block_pool.hpp"

#include <limits>
#include <string>

#include "scheduler/errors.hpp"

namespace di::scheduler {

BlockPool::BlockPool(std::int32_t num_blocks) {
  if (num_blocks < 2) {
    throw BlockPoolError("num_blocks must be at least 2 (index 0 is reserved), got " +
                         std::to_string(num_blocks));
  }
  nodes_.resize(static_cast<std::size_t>(num_blocks));
  for (BlockId id = 1; id < num_blocks; ++id) push_back(id);
}

std::vector<BlockId> BlockPool::allocate(std::int32_t count) {
  if (count < 0 || count > num_free_) {
    throw BlockPoolError("cannot allocate " + std::to_string(count) + ": allowed are 0 to " +
                         std::to_string(num_free_) + ", the free indices");
  }
  std::vector<BlockId> ids;
  ids.reserve(static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i) {
    const BlockId id = pop_front();
    nodes_[id].ref_count = 1;
    ids.push_back(id);
  }
  return ids;
}

void BlockPool::pin(std::span<const BlockId> ids) {
  for (const BlockId id : ids) {
    check_range(id, "pin");
    if (nodes_[id].ref_count == 0) throw BlockPoolError("cannot pin " + std::to_string(id) + ": it is free");
    if (nodes_[id].ref_count > std::numeric_limits<std::int32_t>::max() / 2) {
      throw BlockPoolError("cannot pin " + std::to_string(id) + ": too many references");
    }
  }
  for (const BlockId id : ids) ++nodes_[id].ref_count;
}

void BlockPool::free(std::span<const BlockId> ids) {
  for (const BlockId id : ids) check_range(id, "free");
  // A table may name an index more often than it has references, so the counts are tried first and put back.
  BlockId excess = 0;
  for (const BlockId id : ids) {
    if (--nodes_[id].ref_count < 0 && excess == 0) excess = id;
  }
  for (const BlockId id : ids) ++nodes_[id].ref_count;
  if (excess != 0) {
    throw BlockPoolError("cannot free " + std::to_string(excess) + ": it has only " +
                         std::to_string(nodes_[excess].ref_count) + " references");
  }
  for (std::size_t i = ids.size(); i-- > 0;) {
    if (--nodes_[ids[i]].ref_count == 0) push_back(ids[i]);
  }
}

AllocStatus BlockPool::can_allocate(std::int64_t count) const {
  if (count < 0) throw BlockPoolError("count must be at least 0, got " + std::to_string(count));
  if (count >= num_blocks()) return AllocStatus::kNever;
  return count <= num_free_ ? AllocStatus::kOk : AllocStatus::kLater;
}

std::int32_t BlockPool::ref_count(BlockId id) const {
  check_range(id, "look up");
  return nodes_[id].ref_count;
}

std::vector<BlockId> BlockPool::free_list() const {
  std::vector<BlockId> ids;
  for (BlockId id = nodes_[0].next; id != 0; id = nodes_[id].next) ids.push_back(id);
  return ids;
}

std::vector<BlockId> BlockPool::free_list_backwards() const {
  std::vector<BlockId> ids;
  for (BlockId id = nodes_[0].prev; id != 0; id = nodes_[id].prev) ids.push_back(id);
  return ids;
}

void BlockPool::check_range(BlockId id, const char* operation) const {
  if (id < 1 || id >= num_blocks()) {
    throw BlockPoolError(std::string("cannot ") + operation + " " + std::to_string(id) +
                         ": indices are 1 to " + std::to_string(num_blocks() - 1));
  }
}

BlockId BlockPool::pop_front() {
  const BlockId id = nodes_[0].next;
  nodes_[0].next = nodes_[id].next;
  nodes_[nodes_[id].next].prev = 0;
  nodes_[id].next = nodes_[id].prev = 0;
  --num_free_;
  return id;
}

void BlockPool::push_back(BlockId id) {
  const BlockId tail = nodes_[0].prev;
  nodes_[tail].next = id;
  nodes_[id].prev = tail;
  nodes_[id].next = 0;
  nodes_[0].prev = id;
  ++num_free_;
}

}  // namespace di::scheduler
