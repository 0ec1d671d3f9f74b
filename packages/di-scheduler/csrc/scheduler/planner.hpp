// Which rows the next step computes.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/arrival_queue.hpp"
#include "scheduler/sequence.hpp"
#include "scheduler/sequence_cache.hpp"
#include "scheduler/types.hpp"

namespace di::scheduler {

// Rows q_start .. q_start+q_len-1 of one sequence.
struct PlannedRows {
  SequencePtr sequence;
  std::int32_t q_start;
  std::int32_t q_len;
  bool decode;   // the one missing row of a running sequence
  bool samples;  // the last row is the sequence's last token, so it yields the next one
};

struct Selection {
  std::vector<PlannedRows> rows;  // decode rows first; in arrival order within each kind
  std::vector<SeqId> preempted;
  std::int32_t num_rows = 0;
};

// Running sequences come first, then waiting ones, each in arrival order. Blocks are taken chunk by chunk.
// When a running sequence needs a block and none is free, the latest running sequence gives up what it holds
// and waits (itself, if it is the latest). So the oldest sequence always moves on, and everything ends.
class Planner {
 public:
  Planner(const Config& config, SequenceCache& cache, ArrivalQueue& waiting, ArrivalQueue& running)
      : config_(config), cache_(cache), waiting_(waiting), running_(running) {}

  // Empty only when no sequence is waiting or running. Moves sequences between the queues and takes and gives
  // back blocks.
  Selection select();

 private:
  enum class Kind : std::int8_t { kAny, kDecode, kPrefill };

  void select_kind(Kind kind, Selection& step);
  void continue_running(Kind kind, Selection& step);
  void admit_waiting(Selection& step);
  std::int32_t decodes_after(std::size_t index) const;
  std::int32_t chunk_rows(const Sequence& sequence, std::int32_t budget) const;
  std::int32_t reserve(const SequencePtr& sequence, std::int32_t rows, Selection& step);
  void preempt(const SequencePtr& victim, Selection& step);
  bool may_admit(const Sequence& sequence, std::int32_t rows) const;

  const Config& config_;
  SequenceCache& cache_;
  ArrivalQueue& waiting_;
  ArrivalQueue& running_;
  Kind last_kind_ = Kind::kDecode;  // of the previous homogeneous step
};

}  // namespace di::scheduler
