// Scores of index keys, a tile of 64 columns at a time: keys are read in place from their pages, decoded once
// for all rows of a sequence that score them, and stay in the first-level cache while the heads pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cpu/buffer.hpp"
#include "cpu/indexer.hpp"
#include "parallel.hpp"
#include "simd/indexer.hpp"

namespace di {

using indexer_simd::kColumns;
using indexer_simd::kPairs;

constexpr int64_t kSharingRows = 8;  // rows that share the keys of a tile

// The page that holds an entry of one row; looked up again only where entries cross to another page.
class PageCursor {
 public:
  PageCursor(const IndexPages& pages, int64_t row)
      : pages_(pages), table_(pages.block_table + pages.sequence[row] * pages.table_width) {}

  // True when `entry` lies in another page than the last one did.
  bool moves(int64_t entry) const { return entry < first_ || entry >= first_ + pages_.values.inner; }
  void move(int64_t entry) {
    const int64_t page = entry / pages_.values.inner;
    first_ = page * pages_.values.inner;
    block_ = table_[page];
  }
  // Entries of its page from `entry` on.
  int64_t left(int64_t entry) const { return pages_.values.inner - entry % pages_.values.inner; }
  int64_t block() const { return block_; }
  const uint8_t* values(int64_t entry) const { return pages_.values.at(block_, entry - first_); }
  const uint8_t* scales(int64_t entry) const { return pages_.scales.at(block_, entry - first_); }

 private:
  const IndexPages& pages_;
  const int32_t* table_;
  int64_t first_ = INT64_MIN / 2, block_ = 0;
};

// Throws std::out_of_range unless a row may see `visible` entries and its sequence is one.
void check_index_row(const IndexPages& pages, int64_t row, int64_t visible);

// The largest count(r) of the rows row..end-1 that are of the sequence of `row`.
template <class Count>
int64_t widest(const IndexPages& pages, int64_t row, int64_t end, const Count& count) {
  int64_t most = 0;
  for (int64_t r = row; r < end; ++r) {
    if (pages.sequence[r] == pages.sequence[row]) most = std::max<int64_t>(most, count(r));
  }
  return most;
}

// Queries of some rows and a tile of keys, kept by one thread from call to call. Used under Arithmetic.
template <class T>
class TileScorer {
 public:
  using Arithmetic = std::conditional_t<std::is_same_v<T, bf16>, FlushedSubnormals, DefaultArithmetic>;

  // The rows begin..end-1 are scored from now on, until the next call.
  void take(const IndexShape& shape, const T* q, const T* weights, const IndexPages& pages, int64_t begin,
            int64_t end);

  // Decodes the entries first..first+count-1 for `row` and rows of the same sequence, and has those that
  // follow, up to stop-1, asked for with the first scores. count <= kColumns.
  void load(int64_t row, int64_t first, int64_t count, int64_t stop);

  // The same for those listed; a negative one leaves its column unused.
  void load(int64_t row, const int32_t* entries, int64_t count);

  // Asks for the keys of entries that will be loaded soon: candidate blocks lie anywhere in memory. Inlined,
  // because gcc leaves out calls of a function that does nothing else.
  [[gnu::always_inline]] void prefetch(int64_t row, const int32_t* entries, int64_t count) const {
    const int64_t value_size = value_bytes(pages_->values.format, dim_);
    PageCursor page(*pages_, row);
    for (int64_t c = 0; c < count; ++c) {
      if (page.moves(entries[c])) page.move(entries[c]);
      for (int64_t b = 0; b < value_size; b += 64) __builtin_prefetch(page.values(entries[c]) + b);
      if (c % 8 == 0) __builtin_prefetch(page.scales(entries[c]));
    }
  }

  // Scores of one of the rows over the tile [kColumns]; those of unused columns mean nothing.
  void score(int64_t row, float* out);

 private:
  using Word = std::conditional_t<std::is_same_v<T, bf16>, uint32_t, float>;  // see simd/indexer.hpp
  struct Records {
    const uint8_t *values[kColumns], *scales[kColumns];
  };
  void decode(Records& records, int64_t count);  // and no key in the columns behind them
  void ask_later(PageCursor& page, int64_t next, int64_t stop);
  void put_column(const float* key, int64_t column);

  const IndexPages* pages_ = nullptr;
  int64_t heads_ = 0, dim_ = 0, words_ = 0, begin_ = 0;
  Buffer query_buffer_, tile_buffer_;
  Word *queries_ = nullptr, *tile_ = nullptr;
  LaterLines later_;
  std::vector<float> weights_, key_;
  std::vector<uint8_t> nothing_;  // a record of zeros
};

}  // namespace di
