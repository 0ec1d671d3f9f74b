// The rows of a step, expanded from the scheduler's arrays once and shared by every layer: what
// di_model.batch.build_batch computes, as plain arrays that keep their memory from step to step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace di::plan {

// Rows of S sequences, in their order; all arrays are read during the step only.
struct StepInput {
  std::span<const int32_t> tokens;                 // [rows]
  std::span<const int32_t> q_start, q_len, slots;  // [S]
  std::span<const int32_t> block_table;            // [S, table_width]
  std::span<const int32_t> context;  // [S, lookback]; column k is the token at q_start - 1 - k, or -1
  int64_t table_width, lookback;
};

// Sizes of the caches that steps read and write.
struct CacheSizes {
  int64_t block_size, blocks, slots, window, window_cells, compress_cells;
};

// Rows that go to a ring, each cell at most once: the last ones of every sequence.
struct RingStores {
  std::vector<int32_t> row, slot, cell;

  int64_t size() const { return static_cast<int64_t>(row.size()); }
};

// What the layers of one compress ratio share: entries that each row may see, and the rows that complete one.
struct EntryRows {
  std::vector<int32_t> visible;
  std::vector<int32_t> row, block, entry, rope_position;
  int64_t most_visible = 0;

  int64_t size() const { return static_cast<int64_t>(row.size()); }
};

// Where the first token of each pair of EntryRows is: a row of the step, or (where that is -1) a ring cell.
struct PartnerRows {
  std::vector<int32_t> first, slot, cell;
};

struct StepRows {
  int64_t rows = 0, sequences = 0, table_width = 0, lookback = 0, end = 0;  // end: behind the last position
  const int32_t *tokens = nullptr, *block_table = nullptr;
  std::vector<int32_t> positions, sequence;
  std::vector<int32_t> last_tokens;  // [rows, lookback + 1]; column k is the token k positions back, or -1
  std::vector<int32_t> slot, split, fresh_start, begin, window_end;  // window keys of each row
  RingStores window_store, compress_store;
  EntryRows singles, pairs;  // of compress ratio 1 and 2
  PartnerRows partners;

  // Throws std::invalid_argument for arrays that describe no step, std::out_of_range for a slot or block that
  // the caches do not have.
  void build(const StepInput& input, const CacheSizes& sizes);

  const EntryRows& entries(int64_t ratio) const { return ratio == 1 ? singles : pairs; }

 private:
  void add_sequence(const StepInput& input, const CacheSizes& sizes, int64_t s, int64_t first_row);
};

}  // namespace di::plan
