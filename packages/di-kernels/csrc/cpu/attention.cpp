#include "cpu/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/range.hpp"
#include "cpu/reduce.hpp"
#include "parallel.hpp"

namespace di {
namespace {

constexpr int64_t kPiece = 64;         // columns per piece of the running softmax
constexpr int64_t kKeyTile = 8;        // keys that stay in the first-level cache while all heads visit them
constexpr int64_t kDimTile = 64;       // elements of the output that stay in registers while the keys pass
constexpr int64_t kTypicalKeys = 128;  // of a row, when its work is weighed
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// logits[h][i] = scale * (q_h . key_i); logits have kPiece columns.
DI_MULTIVERSION
void score(const float* q, int64_t heads, const float* keys, int64_t count, int64_t dim, float scale,
           float* logits) {
  for (int64_t tile = 0; tile < count; tile += kKeyTile) {
    const int64_t stop = std::min(tile + kKeyTile, count);
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = tile; i < stop; ++i) {
        logits[h * kPiece + i] = dot(q + h * dim, keys + i * dim, dim) * scale;
      }
    }
  }
}

// part = sum_i weight[i] * key_i for kDimTile elements, in key order; the sums stay in registers.
inline void weighted_sum(const float* weight, const float* keys, int64_t count, int64_t dim, float* part) {
  f32x16 s0{}, s1{}, s2{}, s3{};
  for (int64_t i = 0; i < count; ++i) {
    const float* key = keys + i * dim;
    s0 += load16(key) * weight[i];
    s1 += load16(key + 16) * weight[i];
    s2 += load16(key + 32) * weight[i];
    s3 += load16(key + 48) * weight[i];
  }
  std::memcpy(part, &s0, sizeof s0);
  std::memcpy(part + 16, &s1, sizeof s1);
  std::memcpy(part + 32, &s2, sizeof s2);
  std::memcpy(part + 48, &s3, sizeof s3);
}

// sum[h] = sum[h] * rescale[h] + sum_i weight[h][i] * key_i, the products of a piece added up in key order
// first.
DI_MULTIVERSION
void accumulate(const float* weight, const float* rescale, int64_t heads, const float* keys, int64_t count,
                int64_t dim, float* sum) {
  for (int64_t tile = 0; tile < dim; tile += kDimTile) {
    const int64_t size = std::min(kDimTile, dim - tile);
    for (int64_t h = 0; h < heads; ++h) {
      float part[kDimTile] = {};
      const float* w = weight + h * kPiece;
      if (size == kDimTile) {
        weighted_sum(w, keys + tile, count, dim, part);
      } else {
        for (int64_t i = 0; i < count; ++i) {
          for (int64_t d = 0; d < size; ++d) part[d] += w[i] * keys[i * dim + tile + d];
        }
      }
      float* out = sum + h * dim + tile;
      for (int64_t d = 0; d < size; ++d) out[d] = out[d] * rescale[h] + part[d];
    }
  }
}

// The keys of one row in order of visit; a null record is a column without a key.
struct RowKeys {
  std::vector<const uint8_t*> column;
  int64_t first_entry = 0;  // columns from here on have the format `entry`, those before it `window`
  RecordFormat window = RecordFormat::float32, entry = RecordFormat::float32;

  void decode(int64_t i, int64_t dim, float* out) const {
    const RecordFormat format = i < first_entry ? window : entry;
    decode_record(format, column[i], column[i] + value_bytes(format, dim), dim, out);
  }
};

// Running softmax of some heads of one row.
template <class T>
class RowSoftmax {
 public:
  RowSoftmax(int64_t heads, int64_t dim)
      : dim_(dim),
        q_(heads * dim),
        sum_(heads * dim),
        keys_(kPiece * dim),
        logits_(heads * kPiece),
        maximum_(heads),
        denominator_(heads),
        rescale_(heads) {}

  void run(const T* q, int64_t heads, const RowKeys& keys, const float* sink, float scale, T* out) {
    widen(q, heads * dim_, q_.data());
    std::fill(sum_.begin(), sum_.end(), 0.0f);
    std::fill(maximum_.begin(), maximum_.end(), -kInfinity);
    std::fill(denominator_.begin(), denominator_.end(), 0.0f);
    const int64_t columns = static_cast<int64_t>(keys.column.size());
    bool any = false;
    for (int64_t begin = 0; begin < columns; begin += kPiece) {
      const int64_t count = load(keys, begin, std::min(begin + kPiece, columns));
      if (count == 0) continue;
      any = true;
      score(q_.data(), heads, keys_.data(), count, dim_, scale, logits_.data());
      for (int64_t h = 0; h < heads; ++h) fold(h, count);
      accumulate(logits_.data(), rescale_.data(), heads, keys_.data(), count, dim_, sum_.data());
    }
    for (int64_t h = 0; h < heads; ++h) finish(h, any, sink[h], out + h * dim_);
  }

 private:
  // Decodes the keys of one piece, without gaps.
  int64_t load(const RowKeys& keys, int64_t begin, int64_t end) {
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
      if (keys.column[i] != nullptr) keys.decode(i, dim_, keys_.data() + count++ * dim_);
    }
    return count;
  }

  // Turns the logits of one head into weights of the value product and moves the running sums to the new
  // maximum.
  void fold(int64_t h, int64_t count) {
    float* logits = logits_.data() + h * kPiece;
    float maximum = maximum_[h];
    for (int64_t i = 0; i < count; ++i) maximum = logits[i] > maximum ? logits[i] : maximum;
    const float base = maximum == -kInfinity ? 0.0f : maximum;  // -inf - -inf would be NaN
    rescale_[h] = std::exp(maximum_[h] - base);
    float added = 0.0f;
    for (int64_t i = 0; i < count; ++i) {
      const float p = std::exp(logits[i] - base);
      added += p;
      logits[i] = rounded<T>(p);
    }
    denominator_[h] = denominator_[h] * rescale_[h] + added;
    maximum_[h] = maximum;
  }

  void finish(int64_t h, bool any, float sink, T* out) const {
    const float base = maximum_[h] == -kInfinity ? 0.0f : maximum_[h];
    const float denominator = denominator_[h] + std::exp(sink - base);
    for (int64_t d = 0; d < dim_; ++d) out[d] = from_float<T>(any ? sum_[h * dim_ + d] / denominator : 0.0f);
  }

  int64_t dim_;
  std::vector<float> q_, sum_, keys_, logits_, maximum_, denominator_, rescale_;
};

// Work is shared out by (row, head); a thread decodes the keys of a row once for all its heads of that row.
template <class T, class Collect>
void attend(const AttentionShape& shape, const T* q, const Collect& collect, const float* sink, float scale,
            T* out) {
  const int64_t heads = shape.heads, dim = shape.dim;
  parallel_for(shape.rows * heads, kTypicalKeys * dim, [&](int64_t begin, int64_t end) {
    RowSoftmax<T> softmax(std::min(heads, end - begin), dim);
    RowKeys keys;
    while (begin < end) {
      const int64_t row = begin / heads, head = begin % heads;
      const int64_t count = std::min(heads - head, end - begin);
      keys.column.clear();
      collect(row, keys);
      softmax.run(q + begin * dim, count, keys, sink + head, scale, out + begin * dim);
      begin += count;
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

void check_entries(const EntryKeys& entries, const WindowKeys& window, int64_t rows) {
  const int64_t per_block = entries.pages.inner;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t window_keys = std::max<int64_t>(int64_t{window.end[r]} - window.begin[r], 0);
    require_range("number of window keys", r, window_keys, 0, window.width + 1);
    for (int64_t i = 0; i < entries.count; ++i) {
      const int64_t entry = entries.selected[r * entries.count + i];
      if (entry < 0) continue;
      require_range("selected entry", r, entry, 0, entries.table_width * per_block);
      require_range("sequence", r, entries.sequence[r], 0, entries.sequences);
      const int64_t block =
          entries.block_table[entries.sequence[r] * entries.table_width + entry / per_block];
      require_range("block of a selected entry", r, block, 0, entries.pages.outer);
    }
  }
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
  const int64_t pieces = (window_keys + kPiece - 1) / kPiece;
  return width - std::max<int64_t>(width / kPiece - pieces, 0) * kPiece;
}

void collect_entries(const EntryKeys& entries, int64_t row, RowKeys& keys) {
  const int64_t per_block = entries.pages.inner;
  for (int64_t i = 0; i < entries.count; ++i) {
    const int64_t entry = entries.selected[row * entries.count + i];
    if (entry < 0) {
      keys.column.push_back(nullptr);
      continue;
    }
    const int64_t block =
        entries.block_table[entries.sequence[row] * entries.table_width + entry / per_block];
    keys.column.push_back(entries.pages.at(block, entry % per_block));
  }
}

}  // namespace

template <class T>
void sparse_attention(const AttentionShape& shape, const T* q, const WindowKeys& window,
                      const EntryKeys* entries, const float* sink, float scale, T* out) {
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
  attend(shape, q, collect, sink, scale, out);
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
    list.entry = keys.format;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t key = index[row * width + i];
      list.column.push_back(key < 0 ? nullptr : keys.at(0, key));
    }
  };
  attend(shape, q, collect, sink, scale, out);
}

#define DI_INSTANTIATE(T)                                                                                 \
  template void sparse_attention<T>(const AttentionShape&, const T*, const WindowKeys&, const EntryKeys*, \
                                    const float*, float, T*);                                             \
  template void gathered_attention<T>(const AttentionShape&, const T*, const RecordGrid&, const int32_t*, \
                                      int64_t, const float*, float, T*);
DI_INSTANTIATE(float)
DI_INSTANTIATE(bf16)
#undef DI_INSTANTIATE

}  // namespace di
