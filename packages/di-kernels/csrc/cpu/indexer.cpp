#include "cpu/indexer.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "cpu/range.hpp"
#include "cpu/reduce.hpp"
#include "cpu/topk.hpp"
#include "parallel.hpp"
#include "simd/topk.hpp"

namespace di {
namespace {

constexpr int64_t kTile = 64;  // entries of one row that a thread scores in a stretch
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargestBf16 = 0x1.fep127f;

DI_MULTIVERSION
void head_dots(const float* q, int64_t heads, const float* key, int64_t dim, float* dots) {
  for (int64_t h = 0; h < heads; ++h) dots[h] = dot(q + h * dim, key, dim);
}

template <class T>
float weigh_heads(const float* dots, const T* weights, int64_t heads) {
  float sum = 0.0f;
  for (int64_t h = 0; h < heads; ++h) {
    const float x = rounded<T>(dots[h]);
    const float rectified = x < 0.0f ? 0.0f : x;  // a NaN stays one
    sum += rounded<T>(rectified * to_float(weights[h]));
  }
  return rounded<T>(sum);
}

// Entry of a column, or -1.
int64_t target(const IndexTargets& targets, int64_t row, int64_t column) {
  const int64_t entry = targets.entries != nullptr ? targets.entries[row * targets.width + column] : column;
  return entry < targets.visible[row] ? entry : -1;
}

int64_t block_of(const IndexPages& pages, int64_t row, int64_t entry) {
  return pages.block_table[pages.sequence[row] * pages.table_width + entry / pages.values.inner];
}

void check(const IndexPages& pages, const IndexTargets& targets, int64_t rows) {
  const int64_t per_block = pages.values.inner;
  // Dense rows visit blocks one after the other: one look per block is enough.
  const int64_t step = targets.entries != nullptr ? 1 : std::max<int64_t>(per_block, 1);
  for (int64_t r = 0; r < rows; ++r) {
    if (targets.visible[r] <= 0) continue;
    require_range("visible", r, targets.visible[r], 0, pages.table_width * per_block + 1);
    require_range("sequence", r, pages.sequence[r], 0, pages.sequences);
    for (int64_t c = 0; c < targets.width; c += step) {
      const int64_t entry = target(targets, r, c);
      if (entry >= 0) require_range("block of an entry", r, block_of(pages, r, entry), 0, pages.values.outer);
    }
  }
}

}  // namespace

template <class T>
void index_scores(const IndexShape& shape, const T* q, const T* weights, const IndexPages& pages,
                  const IndexTargets& targets, float* out) {
  check(pages, targets, shape.rows);
  const int64_t per_block = pages.values.inner, heads = shape.heads, dim = shape.dim;
  const int64_t tiles = (targets.width + kTile - 1) / kTile;
  parallel_for(shape.rows * tiles, kTile * heads * dim, [&](int64_t begin, int64_t end) {
    std::vector<float> queries(heads * dim), key(dim), dots(heads);
    int64_t loaded = -1;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / tiles, first = item % tiles * kTile;
      if (row != loaded) {
        widen(q + row * heads * dim, heads * dim, queries.data());
        loaded = row;
      }
      for (int64_t c = first; c < std::min(first + kTile, targets.width); ++c) {
        const int64_t entry = target(targets, row, c);
        float& score = out[row * targets.width + c];
        score = -kInfinity;
        if (entry < 0) continue;
        const int64_t block = block_of(pages, row, entry), place = entry % per_block;
        decode_record(pages.values.format, pages.values.at(block, place), pages.scales.at(block, place), dim,
                      key.data());
        head_dots(queries.data(), heads, key.data(), dim, dots.data());
        score = weigh_heads(dots.data(), weights + row * heads, heads);
      }
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
      const int64_t count = length / block_size + (length % block_size != 0);
      best.resize(static_cast<size_t>(count));
      topk_simd::active().block_maxima(scores + r * stride, length, block_size, best.data());
      for (float& top : best) top = std::min(top, kLargestBf16);
      if (!best.empty()) best.back() = kInfinity;  // above every capped score
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
