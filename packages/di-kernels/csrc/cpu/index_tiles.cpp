#include "cpu/index_tiles.hpp"

#include "cpu/ceil_div.hpp"
#include "cpu/range.hpp"

namespace di {
namespace {

// Words of a vector in a tile.
int64_t words_of(bf16, int64_t dim) { return ceil_div(dim, 2 * kPairs) * kPairs; }
int64_t words_of(float, int64_t dim) { return dim; }

void put_query(const float* q, int64_t dim, float* out) { std::copy_n(q, dim, out); }

void put_query(const bf16* q, int64_t dim, uint32_t* out) {
  const int64_t whole = dim / 8, words = words_of(bf16{}, dim);
  std::fill(out + 4 * whole, out + words, 0u);
  for (int64_t o = 0; o < whole; ++o) {
    for (int64_t s = 0; s < 4; ++s) {
      out[4 * o + s] = q[8 * o + s].bits | uint32_t{q[8 * o + s + 4].bits} << 16;
    }
  }
  for (int64_t d = 8 * whole; d < dim; ++d) out[4 * whole + d % 4] |= uint32_t{q[d].bits} << (d % 8 / 4 * 16);
}

}  // namespace

void check_index_row(const IndexPages& pages, int64_t row, int64_t visible) {
  require_range("visible", row, visible, 0, pages.table_width * pages.values.inner + 1);
  require_range("sequence", row, pages.sequence[row], 0, pages.sequences);
}

template <class T>
void TileScorer<T>::take(const IndexShape& shape, const T* q, const T* weights, const IndexPages& pages,
                         int64_t begin, int64_t end) {
  pages_ = &pages;
  heads_ = shape.heads;
  dim_ = shape.dim;
  words_ = words_of(T{}, dim_);
  begin_ = begin;
  const int64_t heads = (end - begin) * heads_;
  queries_ = query_buffer_.reserve<Word>(heads * words_);
  tile_ = tile_buffer_.reserve<Word>(words_ * kColumns);
  weights_.resize(static_cast<size_t>(heads));
  for (int64_t h = 0; h < heads; ++h) {
    put_query(q + (begin * heads_ + h) * dim_, dim_, queries_ + h * words_);
  }
  widen(weights + begin * heads_, heads, weights_.data());
  key_.resize(static_cast<size_t>(dim_));
  nothing_.resize(static_cast<size_t>(value_bytes(pages.values.format, dim_)));
}

template <class T>
void TileScorer<T>::load(int64_t row, int64_t first, int64_t count, int64_t stop) {
  Records records;
  PageCursor page(*pages_, row);
  for (int64_t c = 0; c < count; ++c) {
    if (page.moves(first + c)) page.move(first + c);
    records.values[c] = page.values(first + c);
    records.scales[c] = page.scales(first + c);
  }
  decode(records, count);
  if (first + count < stop) ask_later(page, first + count, stop);
}

template <class T>
void TileScorer<T>::load(int64_t row, const int32_t* entries, int64_t count) {
  Records records;
  PageCursor page(*pages_, row);
  for (int64_t c = 0; c < count; ++c) {
    if (entries[c] >= 0 && page.moves(entries[c])) page.move(entries[c]);
    records.values[c] = entries[c] < 0 ? nothing_.data() : page.values(entries[c]);
    records.scales[c] = entries[c] < 0 ? nothing_.data() : page.scales(entries[c]);
  }
  decode(records, count);
}

// Of the next tile what lies in one page. Values are many lines, which the loop over heads asks for one by
// one; scales are few. Records that do not lie behind each other are left alone: their lines hold other
// things.
template <class T>
void TileScorer<T>::ask_later(PageCursor& page, int64_t next, int64_t stop) {
  const RecordGrid &values = pages_->values, &scales = pages_->scales;
  const int64_t value_size = value_bytes(values.format, dim_), scale_size = scale_bytes(values.format, dim_);
  if (values.inner_stride != value_size || (scale_size > 0 && scales.inner_stride != scale_size)) return;
  const int64_t keys = std::min({page.left(next), kColumns, stop - next});
  if (page.moves(next)) page.move(next);
  later_ = {page.values(next), ceil_div(keys * value_size, 64)};
  for (int64_t b = 0; b < keys * scale_size; b += 64) __builtin_prefetch(page.scales(next) + b, 0, 2);
}

template <class T>
void TileScorer<T>::decode(Records& records, int64_t count) {
  std::fill(records.values + count, records.values + kColumns, nothing_.data());
  std::fill(records.scales + count, records.scales + kColumns, nothing_.data());
  if constexpr (std::is_same_v<T, bf16>) {
    if (pages_->values.format == RecordFormat::mxfp4) {
      indexer_simd::active().decode_mxfp4(records.values, records.scales, dim_, tile_);
      return;
    }
  }
  for (int64_t c = 0; c < kColumns; ++c) {
    decode_record(pages_->values.format, records.values[c], records.scales[c], dim_, key_.data());
    put_column(key_.data(), c);
  }
}

template <class T>
void TileScorer<T>::put_column(const float* key, int64_t column) {
  if constexpr (std::is_same_v<T, float>) {
    for (int64_t d = 0; d < dim_; ++d) tile_[d * kColumns + column] = key[d];
  } else {
    for (int64_t w = 0; w < words_; ++w) {
      const int64_t low = w / 4 * 8 + w % 4, high = low + 4;
      const uint32_t low_bits = low < dim_ ? to_bf16(key[low]).bits : 0u;
      const uint32_t high_bits = high < dim_ ? to_bf16(key[high]).bits : 0u;
      tile_[w * kColumns + column] = low_bits | high_bits << 16;
    }
  }
}

template <class T>
void TileScorer<T>::score(int64_t row, float* out) {
  const int64_t head = (row - begin_) * heads_;
  const Word* q = queries_ + head * words_;
  const float* weights = weights_.data() + head;
  if constexpr (std::is_same_v<T, bf16>) {
    indexer_simd::active().scores_bf16(q, weights, heads_, words_, tile_, later_, out);
    later_ = {};
  } else {
    indexer_simd::active().scores_float(q, weights, heads_, words_, tile_, out);
  }
}

template class TileScorer<float>;
template class TileScorer<bf16>;

}  // namespace di
