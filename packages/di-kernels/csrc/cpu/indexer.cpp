#include "cpu/indexer.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "cpu/block_maxima.hpp"
#include "cpu/ceil_div.hpp"
#include "cpu/index_tiles.hpp"
#include "cpu/range.hpp"
#include "cpu/topk.hpp"
#include "parallel.hpp"
#include "simd/topk.hpp"

namespace di {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void check(const IndexPages& pages, const IndexTargets& targets, int64_t rows) {
  const int64_t per_block = pages.values.inner;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t visible = targets.visible[r];
    if (visible <= 0) continue;
    check_index_row(pages, r, visible);
    PageCursor page(pages, r);
    const auto look = [&](int64_t entry) {
      if (entry < 0 || entry >= visible || !page.moves(entry)) return;
      page.move(entry);
      require_range("block of an entry", r, page.block(), 0, pages.values.outer);
    };
    if (targets.entries == nullptr) {
      for (int64_t entry = 0; entry < targets.width; entry += per_block) look(entry);
    } else {
      for (int64_t c = 0; c < targets.width; ++c) look(targets.entries[r * targets.width + c]);
    }
  }
}

// Scores of the columns first.. of one row behind each other.
template <class T>
class RowScores {
 public:
  RowScores(const IndexTargets& targets, float* out) : targets_(targets), out_(out) {}

  // The rows begin..end-1, whose queries the scorer has, over one tile.
  void run(TileScorer<T>& scorer, const IndexPages& pages, int64_t begin, int64_t end, int64_t first) {
    int64_t loaded = -1;  // sequence whose keys the tile holds
    for (int64_t r = begin; r < end; ++r) {
      const int64_t count = std::min(kColumns, targets_.width - first);
      float* out = out_ + r * targets_.width + first;
      const int64_t seen = targets_.entries != nullptr
                               ? list(r, first, count)
                               : std::clamp<int64_t>(targets_.visible[r] - first, 0, count);
      std::fill(out, out + count, -kInfinity);
      if (seen == 0) continue;
      if (targets_.entries != nullptr) {
        scorer.load(r, listed_, count);
      } else if (pages.sequence[r] != loaded) {
        const int64_t most =
            widest(pages, r, end, [&](int64_t row) { return targets_.visible[row] - first; });
        scorer.load(r, first, std::min(most, count), first + most);
        loaded = pages.sequence[r];
      }
      float scores[kColumns];
      scorer.score(r, scores);
      for (int64_t c = 0; c < count; ++c) {
        if (targets_.entries != nullptr ? listed_[c] >= 0 : c < seen) out[c] = scores[c];
      }
    }
  }

 private:
  // Lists the entries of a tile, -1 where there is none; returns how many there are.
  int64_t list(int64_t row, int64_t first, int64_t count) {
    int64_t found = 0;
    for (int64_t c = 0; c < count; ++c) {
      const int32_t entry = targets_.entries[row * targets_.width + first + c];
      listed_[c] = entry < targets_.visible[row] ? std::max(entry, -1) : -1;
      found += listed_[c] >= 0;
    }
    return found;
  }

  const IndexTargets& targets_;
  float* out_;
  int32_t listed_[kColumns];
};

}  // namespace

template <class T>
void index_scores(const IndexShape& shape, const T* q, const T* weights, const IndexPages& pages,
                  const IndexTargets& targets, float* out) {
  check(pages, targets, shape.rows);
  const int64_t groups = ceil_div(shape.rows, kSharingRows), tiles = ceil_div(targets.width, kColumns);
  const int64_t cost = std::min(kSharingRows, shape.rows) * kColumns * shape.heads * shape.dim / 8;
  parallel_for(groups * tiles, cost, [&](int64_t begin, int64_t end) {
    thread_local TileScorer<T> scorer;
    const typename TileScorer<T>::Arithmetic arithmetic;
    RowScores<T> scores(targets, out);
    int64_t taken = -1;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t group = item / tiles, first = item % tiles * kColumns;
      const int64_t row = group * kSharingRows, stop = std::min(row + kSharingRows, shape.rows);
      if (group != taken) scorer.take(shape, q, weights, pages, row, stop);
      taken = group;
      scores.run(scorer, pages, row, stop, first);
    }
  });
}

template void index_scores<float>(const IndexShape&, const float*, const float*, const IndexPages&,
                                  const IndexTargets&, float*);
template void index_scores<bf16>(const IndexShape&, const bf16*, const bf16*, const IndexPages&,
                                 const IndexTargets&, float*);

void candidate_blocks(const float* scores, int64_t stride, int64_t rows, int64_t n, const int32_t* visible,
                      int64_t block_size, int64_t top_blocks, int32_t* out) {
  for (int64_t r = 0; r < rows; ++r) {
    if (visible[r] > 0) require_range("visible", r, visible[r], 0, n + 1);
  }
  parallel_for(rows, n, [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> best;
    thread_local TopK work;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t length = std::max<int64_t>(visible[r], 0);
      const int64_t count = ceil_div(length, block_size);
      best.resize(static_cast<size_t>(count));
      topk_simd::active().block_maxima(scores + r * stride, length, block_size, best.data());
      rank_blocks(best.data(), count, 0, count - 1);
      const int64_t kept = select_largest(best.data(), count, top_blocks, work, out + r * top_blocks);
      std::fill(out + r * top_blocks + kept, out + (r + 1) * top_blocks, -1);
    }
  });
}

void candidate_entries(const int32_t* blocks, int64_t rows, int64_t top_blocks, const int32_t* visible,
                       int64_t block_size, int32_t* out) {
  for (int64_t r = 0; r < rows; ++r) {
    int32_t* next = out + r * top_blocks * block_size;
    int32_t* const end = next + top_blocks * block_size;
    for (int64_t b = 0; b < top_blocks; ++b) {
      const int64_t block = blocks[r * top_blocks + b];
      if (block < 0) continue;
      const int64_t stop = std::min<int64_t>((block + 1) * block_size, visible[r]);
      for (int64_t entry = block * block_size; entry < stop; ++entry) *next++ = static_cast<int32_t>(entry);
    }
    std::fill(next, end, -1);
  }
}

}  // namespace di
