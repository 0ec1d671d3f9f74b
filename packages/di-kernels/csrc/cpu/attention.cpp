#include "cpu/attention.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>
#include <vector>

#include "cpu/buffer.hpp"
#include "cpu/ceil_div.hpp"
#include "cpu/range.hpp"
#include "cpu/rope.hpp"
#include "parallel.hpp"
#include "simd/attention.hpp"
#include "simd/formats.hpp"

namespace di {
namespace {

using attention_simd::kHeads;
using attention_simd::kPerWord;
using attention_simd::kPiece;
using attention_simd::kTile;
using attention_simd::Loops;
using attention_simd::Word;

constexpr int64_t kAhead = 12;  // columns that come to the first cache before they are decoded
constexpr int64_t kSteps = 3;   // of the work on a piece, with each of which a share of the next one comes
constexpr int64_t kTypicalKeys = 128;  // of a row, when its work is weighed
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The keys of one row in order of visit; a null record is a column without a key.
struct RowKeys {
  std::vector<const uint8_t*> column;
  int64_t first_entry = 0;  // columns from here on have the format `entry`, those before it `window`
  RecordFormat window = RecordFormat::float32, entry = RecordFormat::float32;

  RecordFormat format(int64_t i) const { return i < first_entry ? window : entry; }

  // Asks for the record of a column in a cache, 1 or 2: entries lie anywhere in memory. Inlined, because gcc
  // leaves out calls of a function that does nothing else.
  template <int kCache>
  [[gnu::always_inline]] void ask(int64_t i, int64_t dim) const {
    constexpr int kLocality = 4 - kCache;
    if (i >= static_cast<int64_t>(column.size()) || column[i] == nullptr) return;
    const int64_t bytes = value_bytes(format(i), dim) + scale_bytes(format(i), dim);
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(column[i] + b, 0, kLocality);
    __builtin_prefetch(column[i] + bytes - 1, 0, kLocality);
  }
};

// One record in the type of the query; exact, but for float32 keys of a bfloat16 query, which are rounded.
template <class T>
void decode_key(const Loops<T>& loops, RecordFormat format, const uint8_t* record, int64_t dim, T* out) {
  if (format == RecordFormat::fp8 && loops.decode_fp8 != nullptr) {
    loops.decode_fp8(record, dim, out);
  } else if (format == RecordFormat::fp4 && loops.decode_fp4 != nullptr && dim % 32 == 0) {
    loops.decode_fp4(record, dim, out);
  } else if (!is_plain(format)) {
    const auto decode = formats_simd::active().of<T>().decode[static_cast<int>(group_format(format))];
    decode(record, record + value_bytes(format, dim), dim, out);
  } else if ((format == RecordFormat::bfloat16) == std::is_same_v<T, bf16>) {
    std::memcpy(out, record, static_cast<size_t>(dim) * sizeof(T));
  } else {
    for (int64_t d = 0; d < dim; ++d) {
      std::conditional_t<std::is_same_v<T, bf16>, float, bf16> x;
      std::memcpy(&x, record + d * static_cast<int64_t>(sizeof x), sizeof x);
      out[d] = from_float<T>(to_float(x));
    }
  }
}

// Running softmax of some heads of one row, in memory that a thread keeps.
template <class T>
class RowSoftmax {
 public:
  void run(const T* q, int64_t heads, int64_t dim, const RowKeys& keys, const float* sink, float scale,
           T* out) {
    for (int64_t i = 0; i < kAhead; ++i) keys.ask<1>(i, dim);
    start(q, heads, dim);
    const int64_t columns = static_cast<int64_t>(keys.column.size());
    bool any = false;
    for (int64_t begin = 0; begin < columns; begin += kPiece) {
      const int64_t count = load(keys, begin, std::min(begin + kPiece, columns));
      if (count == 0) continue;
      any = true;
      visit(count, scale, keys, begin + kPiece);
    }
    if (any) {
      loops_->finish(sum_, maximum_, denominator_, sink, heads_, lanes_, dim_, out);
    } else {
      std::fill(out, out + heads_ * dim_, from_float<T>(0.0f));
    }
  }

 private:
  void start(const T* q, int64_t heads, int64_t dim) {
    loops_ = &attention_simd::active().of<T>();
    heads_ = heads;
    dim_ = dim;
    lanes_ = ceil_div(heads, kHeads) * kHeads;
    words_ = ceil_div(ceil_div(dim, kPerWord<T>), loops_->step_words) * loops_->step_words;
    tiles_ = ceil_div(dim, kTile);
    q_ = q_buffer_.reserve<Word<T>>(lanes_ * words_);
    keys_ = keys_buffer_.reserve<T>(kPiece * tiles_ * kTile);
    values_ = values_buffer_.reserve<Word<T>>(kPiece / kPerWord<T> * tiles_ * kTile);
    weights_ = weights_buffer_.reserve<Word<T>>(kPiece / kPerWord<T> * lanes_);
    logits_ = logits_buffer_.reserve<float>(kPiece * lanes_);
    sum_ = sum_buffer_.reserve<float>(lanes_ * tiles_ * kTile);
    maximum_ = state_buffer_.reserve<float>(3 * lanes_);
    denominator_ = maximum_ + lanes_;
    rescale_ = denominator_ + lanes_;
    // Lanes without a head score zero everywhere.
    if (heads_ < lanes_) std::fill_n(q_, lanes_ * words_, Word<T>{});
    loops_->load_queries(q, heads_, dim_, words_, q_);
    std::fill_n(sum_, lanes_ * tiles_ * kTile, 0.0f);
    std::fill_n(maximum_, lanes_, -kInfinity);
    std::fill_n(denominator_, lanes_, 0.0f);
  }

  // Decodes the keys of one piece without gaps, and zeros behind them, each word of values as soon as its
  // keys are there: they are still in the first cache.
  int64_t load(const RowKeys& keys, int64_t begin, int64_t end) {
    const int64_t stride = tiles_ * kTile;
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
      keys.ask<1>(i + kAhead, dim_);
      if (keys.column[i] == nullptr) continue;
      T* key = keys_ + count++ * stride;
      decode_key(*loops_, keys.format(i), keys.column[i], dim_, key);
      std::fill(key + dim_, key + stride, T{});
      if (count % kPerWord<T> == 0) load_values(count - kPerWord<T>);
    }
    const int64_t padded = padded_keys(count);
    std::fill(keys_ + count * stride, keys_ + padded * stride, T{});
    for (int64_t i = count / kPerWord<T> * kPerWord<T>; i < padded; i += kPerWord<T>) load_values(i);
    return count;
  }

  void load_values(int64_t key) {
    const int64_t stride = tiles_ * kTile;
    loops_->values(keys_ + key * stride, stride, tiles_, values_ + key / kPerWord<T> * kTile);
  }

  int64_t padded_keys(int64_t count) const { return ceil_div(count, loops_->step_keys) * loops_->step_keys; }

  // Works on the `count` keys that were loaded. Meanwhile those of the next piece, from column `next` on,
  // come to the second cache: to decode them takes less time than memory needs.
  void visit(int64_t count, float scale, const RowKeys& keys, int64_t next) {
    const auto ask_share = [&](int64_t step) {
      const int64_t end = next + kPiece * (step + 1) / kSteps;
      for (int64_t i = next + kPiece * step / kSteps; i < end; ++i) keys.ask<2>(i, dim_);
    };
    const int64_t stride = tiles_ * kTile / kPerWord<T>;
    const auto* loaded = reinterpret_cast<const Word<T>*>(keys_);
    ask_share(0);
    loops_->score(q_, lanes_, loaded, words_, stride, padded_keys(count), scale, logits_);
    ask_share(1);
    loops_->fold(logits_, lanes_, count, maximum_, denominator_, rescale_, weights_);
    ask_share(2);
    loops_->accumulate(weights_, heads_, lanes_, values_, tiles_, count, rescale_, sum_);
  }

  const Loops<T>* loops_ = nullptr;
  int64_t heads_ = 0, dim_ = 0, lanes_ = 0, words_ = 0, tiles_ = 0;
  Buffer q_buffer_, keys_buffer_, values_buffer_, weights_buffer_, logits_buffer_, sum_buffer_, state_buffer_;
  Word<T>*q_ = nullptr, *values_ = nullptr, *weights_ = nullptr;
  T* keys_ = nullptr;
  float *logits_ = nullptr, *sum_ = nullptr, *maximum_ = nullptr, *denominator_ = nullptr,
        *rescale_ = nullptr;
};

// Work is shared out by row and kHeads heads; a thread decodes the keys of a row once for all its heads of
// it.
template <class T, class Collect>
void attend(const AttentionShape& shape, const T* q, const Collect& collect, const float* sink, float scale,
            const OutputRope* rope, T* out) {
  using Arithmetic = std::conditional_t<std::is_same_v<T, bf16>, FlushedSubnormals, DefaultArithmetic>;
  const int64_t heads = shape.heads, dim = shape.dim, groups = ceil_div(heads, kHeads);
  parallel_for_uneven(
      shape.rows * groups, kTypicalKeys * std::min(heads, kHeads) * dim / 4, [&](int64_t begin, int64_t end) {
        thread_local RowSoftmax<T> softmax;
        thread_local RowKeys keys;
        while (begin < end) {
          const int64_t row = begin / groups, group = begin % groups;
          const int64_t stop = std::min(groups, group + end - begin);
          const int64_t head = group * kHeads, count = std::min(heads, stop * kHeads) - head;
          keys.column.clear();
          collect(row, keys);
          T* const result = out + (row * heads + head) * dim;
          {
            const Arithmetic arithmetic;
            softmax.run(q + (row * heads + head) * dim, count, dim, keys, sink + head, scale, result);
          }
          if (rope != nullptr) {
            apply_rope(result, rope->positions + row, rope->table, result, 1, count, dim, rope->dim, true);
          }
          begin += stop - group;
        }
      });
}

void check_window(const WindowKeys& window, int64_t rows) {
  const int64_t cells = window.ring.inner;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t begin = window.begin[r], end = window.end[r], split = window.split[r];
    if (begin >= end) continue;
    require_range("begin", r, begin, 0, end);
    if (begin < split) {
      // A ring holds the last `cells` positions before the step.
      require_range("begin", r, begin, split - cells, end);
      require_range("slot", r, window.slot[r], 0, window.ring.outer);
    }
    if (end > split) {
      const int64_t first = window.fresh_start[r] + std::max<int64_t>(begin - split, 0);
      require_range("first fresh key", r, first, 0, window.fresh.inner);
      require_range("last fresh key", r, window.fresh_start[r] + (end - 1 - split), 0, window.fresh.inner);
    }
  }
}

// Where entries lie in pages of `inner` ones; a division would cost more than the rest of a look-up, one of
// int64 three times as much.
class Paging {
 public:
  explicit Paging(int64_t inner)
      : inner_(static_cast<uint32_t>(std::min(inner, int64_t{1} << 31))),  // more than an entry can be
        shift_(std::has_single_bit(inner_) ? std::countr_zero(inner_) : -1) {}

  int64_t page(int32_t entry) const {
    const auto e = static_cast<uint32_t>(entry);
    return shift_ >= 0 ? e >> shift_ : e / inner_;
  }

 private:
  uint32_t inner_;
  int shift_;
};

void check_entries(const EntryKeys& entries, const WindowKeys& window, int64_t rows) {
  const Paging paging(entries.pages.inner);
  parallel_for(rows, kPerElement * entries.count, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const int64_t window_keys = std::max<int64_t>(int64_t{window.end[r]} - window.begin[r], 0);
      require_range("number of window keys", r, window_keys, 0, window.width + 1);
      for (int64_t i = 0; i < entries.count; ++i) {
        const int32_t entry = entries.selected[r * entries.count + i];
        if (entry < 0) continue;
        require_range("selected entry", r, entry, 0, entries.table_width * entries.pages.inner);
        require_range("sequence", r, entries.sequence[r], 0, entries.sequences);
        const int32_t block =
            entries.block_table[entries.sequence[r] * entries.table_width + paging.page(entry)];
        require_range("block of a selected entry", r, block, 0, entries.pages.outer);
      }
    }
  });
}

void collect_window(const WindowKeys& window, int64_t row, RowKeys& keys) {
  const int64_t split = window.split[row];
  for (int64_t p = window.begin[row]; p < window.end[row]; ++p) {
    keys.column.push_back(p < split ? window.ring.at(window.slot[row], p % window.ring.inner)
                                    : window.fresh.at(0, window.fresh_start[row] + (p - split)));
  }
}

// Column of the first entry: `width`, less the pieces before it that hold no key, which change nothing.
int64_t entry_column(int64_t window_keys, int64_t width) {
  return width - std::max<int64_t>(width / kPiece - ceil_div(window_keys, kPiece), 0) * kPiece;
}

void collect_entries(const EntryKeys& entries, int64_t row, RowKeys& keys) {
  const int64_t per_block = entries.pages.inner;
  const Paging paging(per_block);
  const int32_t* const selected = entries.selected + row * entries.count;
  const int32_t* const table = entries.block_table + entries.sequence[row] * entries.table_width;
  for (int64_t i = 0; i < entries.count; ++i) {
    const int32_t entry = selected[i];
    if (entry < 0) {
      keys.column.push_back(nullptr);
      continue;
    }
    const int64_t page = paging.page(entry);
    keys.column.push_back(entries.pages.at(table[page], entry - page * per_block));
  }
}

}  // namespace

template <class T>
void sparse_attention(const AttentionShape& shape, const T* q, const WindowKeys& window,
                      const EntryKeys* entries, const float* sink, float scale, T* out,
                      const OutputRope* rope) {
  check_window(window, shape.rows);
  if (entries != nullptr) check_entries(*entries, window, shape.rows);
  const auto collect = [&](int64_t row, RowKeys& keys) {
    collect_window(window, row, keys);
    keys.window = window.ring.format;
    keys.first_entry = static_cast<int64_t>(keys.column.size());
    if (entries == nullptr) return;
    keys.first_entry = entry_column(keys.first_entry, window.width);
    keys.column.resize(static_cast<size_t>(keys.first_entry), nullptr);
    keys.entry = entries->pages.format;
    collect_entries(*entries, row, keys);
  };
  attend(shape, q, collect, sink, scale, rope, out);
}

template <class T>
void gathered_attention(const AttentionShape& shape, const T* q, const RecordGrid& keys, const int32_t* index,
                        int64_t width, const float* sink, float scale, T* out) {
  for (int64_t r = 0; r < shape.rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      if (index[r * width + i] >= 0) require_range("index", r, index[r * width + i], 0, keys.inner);
    }
  }
  const auto collect = [&](int64_t row, RowKeys& list) {
    list.first_entry = 0;
    list.entry = keys.format;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t key = index[row * width + i];
      list.column.push_back(key < 0 ? nullptr : keys.at(0, key));
    }
  };
  attend(shape, q, collect, sink, scale, static_cast<const OutputRope*>(nullptr), out);
}

#define DI_INSTANTIATE(T)                                                                                 \
  template void sparse_attention<T>(const AttentionShape&, const T*, const WindowKeys&, const EntryKeys*, \
                                    const float*, float, T*, const OutputRope*);                          \
  template void gathered_attention<T>(const AttentionShape&, const T*, const RecordGrid&, const int32_t*, \
                                      int64_t, const float*, float, T*);
DI_INSTANTIATE(float)
DI_INSTANTIATE(bf16)
#undef DI_INSTANTIATE

}  // namespace di
