// Which compressed entries each row attends to: scores, candidate blocks and top-k in one pass over the keys.
// Scores live a tile at a time, so memory does not grow with the context.
#pragma once

#include <cstdint>

#include "cpu/indexer.hpp"

namespace di {

// What is chosen for each row, and from which entries.
struct EntryChoice {
  const int32_t* visible;  // [rows]: entries 0..visible-1 exist
  int64_t topk;
  int32_t* selected;  // [rows, topk] ascending, then -1

  // Entries are taken from these blocks of block_size entries only [rows, candidate_count], ascending, then
  // -1; null: from all visible ones.
  const int32_t* candidates;
  int64_t candidate_count, block_size;

  // Best blocks of each row [rows, top_blocks] as candidate_blocks() chooses them, or null. Not with
  // candidates.
  int32_t* blocks;
  int64_t top_blocks;
};

// The same choice as index_scores, candidate_blocks, candidate_entries and topk_indices make one after the
// other. Rows are shared among threads, and the entries of few rows too. Throws std::out_of_range as they do,
// before anything is chosen.
template <class T>
void select_entries(const IndexShape& shape, const T* q, const T* weights, const IndexPages& pages,
                    const EntryChoice& choice);

}  // namespace di
