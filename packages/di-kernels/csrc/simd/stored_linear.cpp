#include "simd/stored_linear.hpp"

#include "simd/decode.hpp"
#include "simd/simd.hpp"

namespace di::stored_linear_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

// Rows of a weight side by side, for as many sums do not wait for one another; two streams of bfloat16 are as
// much as memory gives.
constexpr int side_rows([[maybe_unused]] WeightFormat format, [[maybe_unused]] int inputs) {
#if defined(DI_AVX512)
  return format == WeightFormat::bfloat16 ? 2 : 4 / inputs;
#else
  return 1;
#endif
}

constexpr int64_t kSumBlocks = 256;  // of 16 rows, whose sums stay in the first cache

// How far the prefetch is in front: asked for as read once, as in linear.cpp.
constexpr int64_t ahead(WeightFormat format) {
  return format == WeightFormat::mxfp4 ? 16384 : format == WeightFormat::fp8 ? 12288 : 8192;
}

// Four blocks of MXFP4 are a line: when the words of four lines change places, these blocks are in these
// lanes.
constexpr int block_of(int lane) { return 4 * (lane % 4) + lane / 4; }

constexpr int64_t row_block(WeightFormat format) { return 4 * words_of_block(format); }  // bytes

// Words word..word+3 of the 16 blocks that begin at `p`.
template <WeightFormat F>
DI_INLINE void block_words(const uint8_t* p, int word, u32x16 (&out)[4]) {
#if defined(DI_AVX512)
  if constexpr (F == WeightFormat::mxfp4) {
    __m512i line[4];  // of four blocks
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) line[i] = (__m512i)load_once(p + 64 * i);
    transpose_in_lanes(line, out);
    return;
  }
#endif
  transpose_words([&](int lane) { return p + block_of(lane) * row_block(F) + 4 * word; }, out);
}

DI_INLINE f32x16 in_order_of_blocks(f32x16 v) {
  return __builtin_shufflevector(v, v, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}

// Sums of 16 blocks of R rows with M inputs, row r and input m at sums + (16 * m + r) * stride. As many bytes
// of R rows at `ask` are asked for.
template <WeightFormat F, int M, int R>
DI_INLINE void chunk_sums(const uint8_t* codes, int64_t row_bytes, const uint8_t* ask, int64_t ask_row_bytes,
                          bool once, const uint32_t* x, float* sums, int64_t stride) {
  constexpr int kPairs = pairs_of_word(F);
  f32x16 sum[R][M] = {};
  for (int w = 0; w < words_of_block(F); w += 4) {
    u32x16 word[R][4];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) block_words<F>(codes + r * row_bytes, w, word[r]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      u32x16 pair[R][kPairs];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        ask_once(ask + r * ask_row_bytes + 64 * (w + i), once);  // many at once would be waited for
        decode_stored_words<F>(word[r][i], pair[r]);
      }
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
          const u32x16 a = load_once(x + 16 * (16 * m + (w + i) * kPairs + p));
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) sum[r][m] = dot_bf16(sum[r][m], pair[r][p], a);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) store(sums + (16 * m + r) * stride, in_order_of_blocks(sum[r][m]));
  }
}

// Sums of all blocks of the R rows at `codes`. What is asked for lies further on in them, or in the rows
// `next`; nothing is read from `end` on.
template <WeightFormat F, int M, int R>
DI_INLINE void row_sums(const uint8_t* codes, const uint8_t* next, const uint8_t* end, int64_t row_bytes,
                        int64_t blocks, const uint32_t* x, float* sums, int64_t stride) {
  constexpr int64_t kBytes = kLaneBlocks * row_block(F);
  const int64_t row_end = blocks * row_block(F);
  const bool once = reads_once();
  for (int64_t b = 0; b < blocks; b += kLaneBlocks) {
    const int64_t at = b * row_block(F), ahead_at = at + ahead(F) / R;
    const uint8_t* ask = ahead_at < row_end ? codes + ahead_at : next + (ahead_at - row_end);
    // What is behind the end of a row is summed up in lanes of blocks that there are not.
    if (b + kLaneBlocks <= blocks || end - codes >= (R - 1) * row_bytes + at + kBytes) {
      chunk_sums<F, M, R>(codes + at, row_bytes, ask, row_bytes, once, x + 16 * b * M, sums + b, stride);
    } else {
      uint8_t padded[R][kBytes] = {};
      for (int i = 0; i < R; ++i) {
        std::memcpy(padded[i], codes + i * row_bytes + at, static_cast<size_t>(row_end - at));
      }
      chunk_sums<F, M, R>(padded[0], kBytes, ask, row_bytes, once, x + 16 * b * M, sums + b, stride);
    }
  }
}

// totals[16] += sums of the blocks of 16 rows, times their scales, block by block.
template <WeightFormat F>
DI_INLINE void add_sums(const float* sums, int64_t stride, const uint8_t* scales, int64_t blocks,
                        float* totals) {
  f32x16 total = load<f32x16>(totals);
  const auto add = [&](int64_t begin, int64_t count) __attribute__((always_inline)) {
    u32x16 sum[4];
    transpose_words([&](int r) { return reinterpret_cast<const uint8_t*>(sums + r * stride + begin); }, sum);
#pragma GCC unroll 4
    for (int64_t i = 0; i < count; ++i) {
      total = fma(floats(sum[i]), decode_scales<F>(scales, begin + i, true), total);
    }
  };
  int64_t b = 0;
  for (; b + 4 <= blocks; b += 4) add(b, 4);
  if (b < blocks) add(b, blocks - b);
  store(totals, total);
}

// Asks for the share that `count` of 16 rows have in the scales that are read next.
DI_INLINE void ask_scales(const Rows& weight, int64_t row, int64_t count) {
  const int64_t end = weight.next_scale_bytes * (row + count) / 16;
  for (int64_t i = weight.next_scale_bytes * row / 16; i < end; i += 64) {
    __builtin_prefetch(weight.next_scales + i);
  }
}

template <WeightFormat F, int M>
void add_rows(const Rows& weight, int64_t blocks, const uint32_t* x, float* totals) {
  constexpr int kSide = side_rows(F, M);
  // Rows that lie a power of two apart would share few places of the first cache.
  constexpr int64_t kStride = kSumBlocks + 16;
  alignas(64) float sums[M * 16 * kStride];
  const uint8_t* end = weight.codes + 15 * weight.row_bytes + blocks * row_block(F);
  for (int64_t begin = 0; begin < blocks; begin += kSumBlocks) {
    const int64_t count = blocks - begin < kSumBlocks ? blocks - begin : kSumBlocks;
    const uint8_t* piece = weight.codes + begin * row_block(F);
    const uint8_t* behind = begin + count < blocks ? piece + count * row_block(F) : weight.next;
    for (int64_t r = 0; r < 16; r += kSide) {
      const uint8_t* codes = piece + r * weight.row_bytes;
      const uint8_t* next = r + kSide < 16 ? codes + kSide * weight.row_bytes : behind;
      if (begin == 0) ask_scales(weight, r, kSide);
      row_sums<F, M, kSide>(codes, next, end, weight.row_bytes, count, x + 16 * begin * M, sums + r * kStride,
                            kStride);
    }
    const uint8_t* scales = weight.scales + begin * block_scales(F);
    for (int m = 0; m < M; ++m) {
      add_sums<F>(sums + 16 * m * kStride, kStride, scales, count, totals + 16 * m);
    }
  }
}

template <WeightFormat F, int M = kMaxInputs>
DI_INLINE void add_of(const Rows& weight, int64_t blocks, const uint32_t* x, int64_t rows, float* totals) {
  if constexpr (M > 0) {
    if (rows == M) return add_rows<F, M>(weight, blocks, x, totals);
    add_of<F, M - 1>(weight, blocks, x, rows, totals);
  }
}

void add(WeightFormat format, const Rows& weight, int64_t blocks, const uint32_t* x, int64_t rows,
         float* totals) {
  of_narrow_format(format, [&]<WeightFormat F>() { add_of<F>(weight, blocks, x, rows, totals); });
}

void lanes(const uint16_t* x, int64_t rows, int64_t blocks, uint32_t* out) {
  for (int64_t b = 0; b < blocks; b += kLaneBlocks) {
    for (int64_t m = 0; m < rows; ++m, out += 256) {
      uint16_t block[kLaneBlocks][32] = {};
      for (int64_t i = 0; i < kLaneBlocks && b + i < blocks; ++i) {
        std::memcpy(block[i], x + 32 * ((b + i) * rows + m), sizeof block[i]);
      }
      for (int p = 0; p < 16; p += 4) {
        u32x16 pair[4];
        const auto* first = reinterpret_cast<const uint8_t*>(block[0]) + 4 * p;
        transpose_words([&](int lane) { return first + sizeof block[0] * block_of(lane); }, pair);
        for (int i = 0; i < 4; ++i) store(out + 16 * (p + i), pair[i]);
      }
    }
  }
}

}  // namespace

const Table table = {.lanes = lanes, .add = add};

}  // namespace di::stored_linear_simd::DI_ISA
