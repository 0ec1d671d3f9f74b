// Rows of one sequence in a step.
#pragma once

#include <cstdint>
#include <vector>

#include "scheduler/sequence.hpp"
#include "scheduler/types.hpp"

namespace di::scheduler {

// Rows q_start .. q_start+q_len-1 of one sequence.
struct Piece {
  SequencePtr sequence;
  std::int32_t q_start;
  std::int32_t q_len;
  bool decode;   // one row, and drafts behind it
  bool samples;  // the last row is the sequence's last token, so it yields the next one
  // Of a decode whose last token is in flight: the tokens that may come at most, and how many draft rows the
  // table has room for.
  std::int32_t pending = 0;
  std::int32_t draft_limit = 0;
};

struct Selection {
  std::vector<Piece> pieces;  // decodes first; oldest first within each kind
  std::int32_t num_rows = 0;
};

// Whether the next plan may have rows of a running sequence: not when it is to be preempted, when it surely
// ends with the step in flight, or when its prompt was all that this engine does.
inline bool is_plannable(const Sequence& sequence, const Config& config) {
  if (sequence.marked) return false;
  if (sequence.pending_tokens() == 0) return true;
  return config.kind != EngineKind::kPrefillOnly &&
         sequence.output_length() + 1 < sequence.limits().max_tokens &&
         sequence.length() + 1 < config.length_limit();
}

}  // namespace di::scheduler
