#include "simd/linear.hpp"

#include "simd/decode.hpp"
#include "simd/one_row.hpp"
#include "simd/simd.hpp"
#include "simd/staged_rows.hpp"
#include "simd/stored_linear.hpp"

namespace di::linear_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

// As many sums as the registers hold: the dot product has a latency of about six cycles, two begin in each.
#if defined(DI_AVX512)
constexpr int kFewStoredRows = 8, kNarrowRows = 8, kWideRows = 12, kGroups = 2;
#if defined(DI_AVX512BF16)
constexpr int kFewRows = 16;
#else
constexpr int kFewRows = 8;  // a dot product of two steps needs registers of its own
#endif
#else
constexpr int kFewRows = 2, kFewStoredRows = 0, kNarrowRows = 3, kWideRows = 3, kGroups = 1;
#endif

// Up to kFewRows rows a group is decoded in registers. Up to kPairRows of them meet two groups of a packed
// weight together, which share the loads of the inputs; a single row waits for memory, which gives one stream
// sooner than two. Up to kSideRows rows of MXFP4, whose sums the decoding would wait for, take two blocks
// side by side.
constexpr int kPairRows = 8, kSideRows = 4;

// Where the blocks of a group come from: `pairs` decodes kWords words of every row, `asked` tells where what
// is asked for meanwhile lies. A packed weight is asked for as read once (not to be kept): a step of few rows
// reads more weights than the caches hold, and what the host needs between two steps would have to come from
// memory again.
template <WeightFormat F>
struct PackedGroup {
  static constexpr bool kStream = true;
  static constexpr int kWords = 1, kPairRows = DI_ISA::kPairRows;
  static constexpr int kSideRows = F == WeightFormat::mxfp4 ? DI_ISA::kSideRows : 0;
  Codes at;
  bool once;
};

template <WeightFormat F>
DI_INLINE const uint8_t* asked(const PackedGroup<F>& group, int64_t block, int64_t blocks) {
  const int64_t offset = block * block_bytes(F) + group.at.ahead, end = blocks * block_bytes(F);
  return offset < end ? group.at.codes + offset : group.at.next + (offset - end);
}

template <WeightFormat F>
DI_INLINE void pairs(const PackedGroup<F>& group, const uint8_t* ask, int64_t block, int word, u32x16* out) {
  ask_once(ask + 64 * word, group.once);
  decode_words<F>(load_once(group.at.codes + block * block_bytes(F) + 64 * word), out);
}

// 16 rows as stored. What is asked for in advance is the next group, in the order in which it lies in memory:
// 16 rows that are read side by side would reach memory as 16 slow streams.
template <WeightFormat F>
struct StoredGroup {
  static constexpr bool kStream = false;
  static constexpr int kWords = 4, kPairRows = 0, kSideRows = 0;
  Codes at;
  int64_t row_bytes;
};

template <WeightFormat F>
DI_INLINE const uint8_t* asked(const StoredGroup<F>& group, int64_t block, int64_t) {
  return group.at.next + block * block_bytes(F);
}

template <WeightFormat F>
DI_INLINE void pairs(const StoredGroup<F>& group, const uint8_t* ask, int64_t block, int word, u32x16* out) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) __builtin_prefetch(ask + 64 * (word + i), 0, 2);
  const uint8_t* p = group.at.codes + 4 * (block * words_of_block(F) + word);
  u32x16 v[4];
  transpose_words([&](int r) { return p + r * group.row_bytes; }, v);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) decode_stored_words<F>(v[i], out + i * pairs_of_word(F));
}

// M rows, G groups, B blocks side by side: the sums of a block start from zero, so that they do not wait for
// those of another one.
template <WeightFormat F, int M, int G, int B, class Group>
DI_INLINE void add_blocks(const Group* groups, int64_t block, int64_t blocks, const uint16_t* x,
                          int64_t x_rows, float* totals) {
  constexpr int kPairs = Group::kWords * pairs_of_word(F);
  const uint8_t* ask[B * G];
  const uint16_t* rows[B];
  for (int b = 0; b < B; ++b) rows[b] = x + 32 * x_rows * (block + b);
  f32x16 sum[B * G][M] = {};
#pragma GCC unroll 4
  for (int i = 0; i < B * G; ++i) ask[i] = asked(groups[i % G], block + i / G, blocks);
#pragma GCC unroll 16
  for (int w = 0; w < words_of_block(F); w += Group::kWords) {
    u32x16 pair[B * G][kPairs];
#pragma GCC unroll 4
    for (int i = 0; i < B * G; ++i) pairs(groups[i % G], ask[i], block + i / G, w, pair[i]);
#pragma GCC unroll 16
    for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 16
      for (int i = 0; i < B * M; ++i) {
        const int b = i / M, m = i % M;
        u32x16 a = splat_pair(rows[b] + 32 * m + 2 * (w * pairs_of_word(F) + p));
        if constexpr (G > 1) keep(a);
#pragma GCC unroll 2
        for (int g = 0; g < G; ++g) sum[b * G + g][m] = dot_bf16(sum[b * G + g][m], pair[b * G + g][p], a);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < B * G; ++i) {
    const f32x16 scale = decode_scales<F>(groups[i % G].at.scales, block + i / G, true);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      float* total = totals + 16 * (i % G * M + m);
      store(total, fma(sum[i][m], scale, load<f32x16>(total)));
    }
  }
}

// Not inlined: together they would share the registers for what they all keep.
template <WeightFormat F, int M, int G, class Group>
[[gnu::noinline]] void few_rows(const Group* groups, int64_t blocks, const uint16_t* x, int64_t x_rows,
                                float* totals) {
  constexpr int kSide = M <= Group::kSideRows ? 2 : 1;
  int64_t b = 0;
  for (; b + kSide <= blocks; b += kSide) add_blocks<F, M, G, kSide>(groups, b, blocks, x, x_rows, totals);
  for (; b < blocks; ++b) add_blocks<F, M, G, 1>(groups, b, blocks, x, x_rows, totals);
}

// Groups that do not meet the rows together do so one after another.
template <WeightFormat F, int M, class Group>
DI_INLINE void few_of(const Group* groups, int64_t count, int64_t blocks, const uint16_t* x, int64_t x_rows,
                      int64_t rows, float* totals) {
  if constexpr (M > 0) {
    if (rows != M) return few_of<F, M - 1>(groups, count, blocks, x, x_rows, rows, totals);
    if constexpr (kGroups == 2 && M > 1 && M <= Group::kPairRows) {
      if (count == 2) return few_rows<F, M, 2>(groups, blocks, x, x_rows, totals);
    }
    for (int64_t g = 0; g < count; ++g) {
      Group one = groups[g];
      if (count == 2) one.at.next = g == 0 ? groups[1].at.scales : groups[0].at.next;
      if constexpr (M == 1 && Group::kStream) {
        one_row<F>(one.at, one.once, blocks, x, x_rows, totals + 16 * g);
      } else {
        few_rows<F, M, 1>(&one, blocks, x, x_rows, totals + 16 * M * g);
      }
    }
  }
}

template <WeightFormat F>
void narrow_of(const Codes* groups, int64_t count, int64_t blocks, const uint16_t* x, int64_t x_rows,
               int64_t rows, float* totals) {
  if (rows > kFewRows) {
    return many_rows<F, kNarrowRows, kGroups>(groups, count, blocks, x, x_rows, rows, totals);
  }
  PackedGroup<F> packed[kTileGroups];
  for (int64_t g = 0; g < count; ++g) packed[g] = {groups[g], reads_once()};
  few_of<F, kFewRows>(packed, count, blocks, x, x_rows, rows, totals);
}

void narrow(WeightFormat format, const Codes* groups, int64_t count, int64_t blocks, const uint16_t* x,
            int64_t x_rows, int64_t rows, float* totals) {
  of_narrow_format(format,
                   [&]<WeightFormat F>() { narrow_of<F>(groups, count, blocks, x, x_rows, rows, totals); });
}

void wide(WeightFormat format, const Codes* groups, int64_t count, int64_t blocks, const float* x,
          int64_t x_rows, int64_t rows, float* totals) {
  const auto run = [&]<WeightFormat F>() {
    many_rows<F, kWideRows, kGroups>(groups, count, blocks, x, x_rows, rows, totals);
  };
  if (format == WeightFormat::float32) return run.template operator()<WeightFormat::float32>();
  of_narrow_format(format, run);
}

template <WeightFormat F>
void few_stored_of(const Codes& at, int64_t row_bytes, int64_t blocks, const uint16_t* x, int64_t x_rows,
                   int64_t rows, float* totals) {
  const StoredGroup<F> group{at, row_bytes};
  few_of<F, kFewStoredRows>(&group, 1, blocks, x, x_rows, rows, totals);
}

void few_stored(WeightFormat format, const Codes& group, int64_t row_bytes, int64_t blocks, const uint16_t* x,
                int64_t x_rows, int64_t rows, float* totals) {
  of_narrow_format(
      format, [&]<WeightFormat F>() { few_stored_of<F>(group, row_bytes, blocks, x, x_rows, rows, totals); });
}

void store_bf16(const float* totals, int64_t stride, int64_t rows, int64_t count, uint16_t* y,
                int64_t y_stride) {
  for (int64_t m = 0; m < rows; ++m) {
    const u16x16 v = to_bf16(load<f32x16>(totals + stride * m));
    if (count == 16) {
      store(y + m * y_stride, v);
    } else {
      std::memcpy(y + m * y_stride, &v, static_cast<size_t>(count) * 2);
    }
  }
}

void store_float(const float* totals, int64_t stride, int64_t rows, int64_t count, float* y,
                 int64_t y_stride) {
  for (int64_t m = 0; m < rows; ++m) {
    const f32x16 v = one_nan(load<f32x16>(totals + stride * m));
    if (count == 16) {
      store(y + m * y_stride, v);
    } else {
      std::memcpy(y + m * y_stride, &v, static_cast<size_t>(count) * 4);
    }
  }
}

}  // namespace

const Table table = {.row_block = 512,
                     .input_bytes = kAnyBytes,
                     .part_bytes = kAnyBytes,
                     .total_bytes = 0,
                     .narrow = narrow,
                     .wide = wide,
                     .lane_rows = stored_linear_simd::kMaxInputs,
                     .few_stored_rows = kFewStoredRows,
                     .few_stored = few_stored,
                     .store_bf16 = store_bf16,
                     .store_float = store_float};

}  // namespace di::linear_simd::DI_ISA
