#include "cpu/select.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "cpu/block_maxima.hpp"
#include "cpu/ceil_div.hpp"
#include "cpu/index_tiles.hpp"
#include "cpu/range.hpp"
#include "cpu/topk.hpp"
#include "parallel.hpp"

namespace di {
namespace {

// Columns that a row chooses from: all visible entries, or those of its candidate blocks in order.
struct RowColumns {
  const int32_t* blocks = nullptr;  // null: column c is entry c
  int64_t block_size = 0;
  int64_t count = 0;
  int64_t scored = 0;  // `count`, or 0 where everything is chosen anyway

  RowColumns(const EntryChoice& choice, int64_t row) {
    const int64_t visible = std::max<int64_t>(choice.visible[row], 0);
    if (choice.candidates == nullptr) {
      count = visible;
    } else {
      blocks = choice.candidates + row * choice.candidate_count;
      block_size = choice.block_size;
      const int64_t blocks_of_visible = ceil_div(visible, block_size);
      int64_t least = 0;
      for (int64_t b = 0; b < choice.candidate_count && blocks[b] >= 0; ++b) {
        if (blocks[b] >= blocks_of_visible) break;
        require_range("candidate block", row, blocks[b], least, blocks_of_visible);
        least = blocks[b] + 1;
        count += std::min(visible - blocks[b] * block_size, block_size);
      }
    }
    const bool rank = choice.blocks != nullptr && ceil_div(count, choice.block_size) > choice.top_blocks;
    scored = count > choice.topk || rank ? count : 0;
  }

  // Only the last block with a visible entry may be partial.
  int32_t entry(int64_t column) const {
    if (blocks == nullptr) return static_cast<int32_t>(column);
    return static_cast<int32_t>(blocks[column / block_size] * block_size + column % block_size);
  }

  void list(int64_t first, int64_t n, int32_t* out) const {
    int64_t block = first / block_size, place = first % block_size;
    for (int64_t i = 0; i < n; ++i) {
      out[i] = static_cast<int32_t>(blocks[block] * block_size + place);
      if (++place < block_size) continue;
      ++block;
      place = 0;
    }
  }
};

// Checks what a row reads, with a look at the table for each page.
void check_row(const IndexPages& pages, const EntryChoice& choice, int64_t row, const RowColumns& columns) {
  if (choice.visible[row] <= 0) return;
  check_index_row(pages, row, choice.visible[row]);
  PageCursor page(pages, row);
  const auto look = [&](int64_t entry) {
    if (!page.moves(entry)) return;
    page.move(entry);
    require_range("block of an entry", row, page.block(), 0, pages.values.outer);
  };
  const int64_t step =
      columns.blocks == nullptr ? pages.values.inner : std::min(pages.values.inner, columns.block_size);
  for (int64_t c = 0; c < columns.count; c += step) {
    look(columns.entry(c));
    if (columns.blocks != nullptr) look(columns.entry(std::min(c + step, columns.count) - 1));
  }
}

// What one row has chosen from one part of its columns.
struct Part {
  TopK entries;
  BlockMaxima blocks;
};

// How columns are cut into parts: whole tiles, and whole blocks where those are ranked.
struct Split {
  int64_t parts, unit;
  int64_t begin(int64_t columns, int64_t part) const { return ceil_div(columns, unit) * part / parts * unit; }
};

template <class T>
class Selection {
 public:
  Selection(const IndexShape& shape, const T* q, const T* weights, const IndexPages& pages,
            const EntryChoice& choice, const std::vector<RowColumns>& columns)
      : shape_(shape), q_(q), weights_(weights), pages_(pages), choice_(choice), columns_(columns) {}

  // Scores one part of the columns of the rows begin..end-1, at most kSharingRows.
  void score(int64_t begin, int64_t end, const Split& split, int64_t part, Part* parts) const {
    thread_local TileScorer<T> scorer;
    const typename TileScorer<T>::Arithmetic arithmetic;
    int64_t most = 0;
    for (int64_t r = begin; r < end; ++r) most = std::max(most, columns_[r].scored);
    // The rows are cut at the same columns, so that they meet in the same tiles.
    const int64_t first = split.begin(most, part), stop = std::min(most, split.begin(most, part + 1));
    for (int64_t r = begin; r < end; ++r) {
      parts[r - begin].entries.start(choice_.topk);
      if (choice_.blocks == nullptr) continue;
      parts[r - begin].blocks.start(choice_.top_blocks, choice_.block_size, columns_[r].scored, first);
    }
    if (first >= stop) return;
    scorer.take(shape_, q_, weights_, pages_, begin, end);
    for (int64_t column = first; column < stop; column += kColumns) {
      score_tile(scorer, begin, end, column, std::min(column + kColumns, stop), parts);
    }
    for (int64_t r = begin; choice_.blocks != nullptr && r < end; ++r) parts[r - begin].blocks.end();
  }

  // Puts the parts of a row together, `stride` of them apart, and writes what it has chosen.
  void finish(int64_t row, Part* parts, int64_t count, int64_t stride) const {
    const RowColumns& columns = columns_[row];
    int32_t* selected = choice_.selected + row * choice_.topk;
    for (int64_t p = 1; p < count && columns.scored > 0; ++p) {
      parts[0].entries.merge(parts[p * stride].entries);
      if (choice_.blocks != nullptr) parts[0].blocks.best().merge(parts[p * stride].blocks.best());
    }
    put(parts[0].entries, columns.count, choice_.topk, selected);
    for (int64_t i = 0; i < choice_.topk && selected[i] >= 0; ++i) selected[i] = columns.entry(selected[i]);
    if (choice_.blocks == nullptr) return;
    put(parts[0].blocks.best(), ceil_div(columns.count, choice_.block_size), choice_.top_blocks,
        choice_.blocks + row * choice_.top_blocks);
  }

 private:
  void score_tile(TileScorer<T>& scorer, int64_t begin, int64_t end, int64_t column, int64_t stop,
                  Part* parts) const {
    int64_t loaded = -1;  // sequence whose keys the tile holds
    for (int64_t r = begin; r < end; ++r) {
      const int64_t n = std::min(columns_[r].scored, stop) - column;
      if (n <= 0) continue;
      if (columns_[r].blocks != nullptr) {
        int32_t listed[kColumns];
        columns_[r].list(column, n, listed);
        scorer.load(r, listed, n);
        const int64_t next = std::clamp<int64_t>(columns_[r].scored - column - kColumns, 0, kColumns);
        columns_[r].list(column + kColumns, next, listed);
        scorer.prefetch(r, listed, next);
      } else if (pages_.sequence[r] != loaded) {
        loaded = pages_.sequence[r];
        const int64_t most = widest(pages_, r, end, [&](int64_t row) { return columns_[row].scored; });
        scorer.load(r, column, std::min(most, stop) - column, most);
      }
      float scores[kColumns];
      scorer.score(r, scores);
      parts[r - begin].entries.push(scores, n, column);
      if (choice_.blocks != nullptr) parts[r - begin].blocks.push(scores, n);
    }
  }

  // The indices that were kept, or all `count` of them where they fit; then -1.
  static void put(TopK& best, int64_t count, int64_t k, int32_t* out) {
    int64_t kept = count;
    if (count <= k) {
      std::iota(out, out + count, 0);
    } else {
      kept = best.finish(out);
    }
    std::fill(out + kept, out + k, -1);
  }

  const IndexShape& shape_;
  const T *q_, *weights_;
  const IndexPages& pages_;
  const EntryChoice& choice_;
  const std::vector<RowColumns>& columns_;
};

}  // namespace

template <class T>
void select_entries(const IndexShape& shape, const T* q, const T* weights, const IndexPages& pages,
                    const EntryChoice& choice) {
  thread_local std::vector<RowColumns> columns;
  thread_local std::vector<Part> shared;
  columns.clear();
  int64_t work = 0;
  for (int64_t r = 0; r < shape.rows; ++r) {
    columns.emplace_back(choice, r);
    check_row(pages, choice, r, columns.back());
    work += columns.back().scored * shape.heads * shape.dim / 8;
  }
  const Selection<T> selection(shape, q, weights, pages, choice, columns);
  const int64_t groups = ceil_div(shape.rows, kSharingRows), threads = num_threads();
  const int64_t unit = choice.blocks != nullptr ? std::lcm(kColumns, choice.block_size) : kColumns;
  // Few rows: a thread takes a part of their columns, else whole rows. No more parts than keep all threads
  // busy: each of each row holds a list of its own.
  const int64_t busy = ceil_div(2 * threads, std::max<int64_t>(groups, 1));
  const Split split{groups < 2 * threads ? std::min(threads, busy) : 1, unit};
  const int64_t items = groups * split.parts;
  if (split.parts > 1) shared.resize(std::max(shared.size(), static_cast<size_t>(shape.rows * split.parts)));
  Part* const all = shared.data();
  parallel_for(items, work / std::max<int64_t>(items, 1), [&](int64_t begin, int64_t end) {
    thread_local Part own[kSharingRows];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / split.parts * kSharingRows, part = item % split.parts;
      const int64_t stop = std::min(row + kSharingRows, shape.rows);
      Part* const parts = split.parts > 1 ? all + part * shape.rows + row : own;
      selection.score(row, stop, split, part, parts);
      for (int64_t r = row; split.parts == 1 && r < stop; ++r) selection.finish(r, parts + (r - row), 1, 0);
    }
  });
  for (int64_t r = 0; split.parts > 1 && r < shape.rows; ++r) {
    selection.finish(r, all + r, split.parts, shape.rows);
  }
}

template void select_entries<float>(const IndexShape&, const float*, const float*, const IndexPages&,
                                    const EntryChoice&);
template void select_entries<bf16>(const IndexShape&, const bf16*, const bf16*, const IndexPages&,
                                   const EntryChoice&);

}  // namespace di
