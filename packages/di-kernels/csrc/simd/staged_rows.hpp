// Products of many rows with groups of a packed weight: blocks are decoded once, a stage ahead of the rows
// that meet them. Only for simd/linear.cpp.
#pragma once

#include "simd/decode.hpp"
#include "simd/linear.hpp"

namespace di::linear_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

DI_INLINE u32x16 splat_pair(const uint16_t* p) {
  uint32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return u32x16{} + pair;
}

// Formats whose blocks are read where they lie.
template <WeightFormat F, class T>
constexpr bool kPlain = F == (sizeof(T) == 2 ? WeightFormat::bfloat16 : WeightFormat::float32);

constexpr int64_t kStageBlocks = 4;

// Decoded blocks of a group: bfloat16 pairs [block][16][16 rows], or float32 [block][32][16 rows].
template <class T>
struct Stage {
  static constexpr int64_t kBlockBytes = 32 * 16 * sizeof(T);
  // With room between two of them: a load behind a store to the same place of another page would wait.
  alignas(64) uint8_t values[(kStageBlocks + 1) * kBlockBytes];
  alignas(64) float scale[kStageBlocks * 16];
};

// What is done beside a block of a product, in 16 steps: a block of a later stage is asked for, and decoded a
// word at a time. Dot products leave the ports free that this needs.
template <WeightFormat F, class T>
struct BlockAhead {
  const uint8_t *codes, *scales, *ask;
  uint8_t* values;
  float* scale;

  [[gnu::always_inline]] void step(int p) const {
    constexpr int kPairs = F == WeightFormat::float32 ? 1 : pairs_of_word(F);
    constexpr int kLines = F == WeightFormat::float32 ? 2 : 1;
    if (p % kPairs != 0) return;
    const int64_t line = 64 * kLines * (p / kPairs);
#pragma GCC unroll 2
    for (int i = 0; i < kLines; ++i) __builtin_prefetch(ask + line + 64 * i, 0, 2);
    if constexpr (!kPlain<F, T>) {
      u32x16 pair[kPairs];
      decode_words<F>(load<u32x16>(codes + line), pair);
#pragma GCC unroll 4
      for (int i = 0; i < kPairs; ++i) {
        if constexpr (sizeof(T) == 2) {
          store(values + 64 * (p + i), pair[i]);
        } else {
          store(values + 128 * (p + i), pair[i] << 16);
          store(values + 128 * (p + i) + 64, pair[i] & 0xffff0000u);
        }
      }
    }
  }

  [[gnu::always_inline]] void finish() const {
    if constexpr (!kPlain<F, T>) store(scale, decode_scales<F>(scales, 0, sizeof(T) == 2));
  }
};

template <WeightFormat F, class T>
DI_INLINE BlockAhead<F, T> block_ahead(const Codes& group, int64_t block, int64_t blocks, Stage<T>* stage,
                                       int64_t at) {
  const int64_t offset = block * block_bytes(F), ask = offset + group.ahead - blocks * block_bytes(F);
  return {group.codes + offset, group.scales + block * block_scales(F),
          ask < 0 ? group.codes + offset + group.ahead : group.next + ask,
          stage->values + at * Stage<T>::kBlockBytes, stage->scale + 16 * at};
}

// Sums of one block of MR rows and NV groups.
template <int MR, int NV, class Besides>
DI_INLINE void block_sums(const uint8_t* const (&w)[NV], const uint16_t* x, f32x16 (&sum)[MR][NV],
                          const Besides& besides) {
#pragma GCC unroll 16
  for (int p = 0; p < 16; ++p) {
    u32x16 pair[NV];
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) pair[v] = load<u32x16>(w[v] + 64 * p);
    // A row of the next tile: it lies in the second or third cache.
    if (p < MR) __builtin_prefetch(x + 32 * (MR + p));
    besides(p);
#pragma GCC unroll 12
    for (int m = 0; m < MR; ++m) {
      const u32x16 a = splat_pair(x + 32 * m + 2 * p);
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) sum[m][v] = dot_bf16(sum[m][v], pair[v], a);
    }
  }
}

template <int MR, int NV, class Besides>
DI_INLINE void block_sums(const uint8_t* const (&w)[NV], const float* x, f32x16 (&sum)[MR][NV],
                          const Besides& besides) {
#pragma GCC unroll 8
  for (int k = 0; k < 32; ++k) {
    f32x16 value[NV];
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) value[v] = load<f32x16>(w[v] + 64 * k);
    if (k < 2 * MR) __builtin_prefetch(x + 32 * MR + 16 * k);
    if (k % 2 == 0) besides(k / 2);
#pragma GCC unroll 12
    for (int m = 0; m < MR; ++m) {
      const f32x16 a = splat(x[32 * m + k]);
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) sum[m][v] = fma(value[v], a, sum[m][v]);
    }
  }
}

// A block of MR rows times NV groups: its sums in registers, totals in memory that stays in the first cache.
template <int MR, int NV, class T, class Besides>
DI_INLINE void add_block(const uint8_t* const (&w)[NV], const f32x16 (&scale)[NV], const T* x, float* totals,
                         int64_t stride, const Besides& besides) {
  f32x16 sum[MR][NV] = {};
  block_sums<MR, NV>(w, x, sum, besides);
#pragma GCC unroll 2
  for (int v = 0; v < NV; ++v) {
#pragma GCC unroll 12
    for (int m = 0; m < MR; ++m) {
      float* total = totals + 16 * m + stride * v;
      store(total, fma(sum[m][v], scale[v], load<f32x16>(total)));
    }
  }
}

// Blocks begin.. of all groups, of which `count` are in the stages, and what is done meanwhile: `ahead`
// blocks that come next, for one of the groups.
template <class T>
struct Part {
  const Codes* groups;
  const Stage<T>* now;
  int64_t begin, count, blocks;
  Stage<T>* then;
  int64_t ahead;
};

template <WeightFormat F, int MR, int NV, class T>
void tile(const Part<T>& part, int64_t group_ahead, const T* x, int64_t x_rows, float* totals,
          int64_t stride) {
  for (int64_t b = 0; b < part.count; ++b) {
    const uint8_t* w[NV];
    f32x16 scale[NV];
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) {
      const int64_t plain = (part.begin + b) * block_bytes(F), staged = b * Stage<T>::kBlockBytes;
      w[v] = kPlain<F, T> ? part.groups[v].codes + plain : part.now[v].values + staged;
      scale[v] = kPlain<F, T> ? splat(1.0f) : load<f32x16>(part.now[v].scale + 16 * b);
    }
    const T* rows = x + 32 * x_rows * b;
    if (group_ahead < NV && b < part.ahead) {
      const auto block = block_ahead<F, T>(part.groups[group_ahead], part.begin + part.count + b, part.blocks,
                                           part.then + group_ahead, b);
      add_block<MR, NV>(w, scale, rows, totals, stride,
                        [&](int p) __attribute__((always_inline)) { block.step(p); });
      block.finish();
    } else {
      add_block<MR, NV>(w, scale, rows, totals, stride, [](int) {});
    }
  }
}

template <WeightFormat F, int MR, int NV, class T>
DI_INLINE void tile_of(int64_t rows, const Part<T>& part, int64_t group_ahead, const T* x, int64_t x_rows,
                       float* totals, int64_t stride) {
  if constexpr (MR > 0) {
    if (rows == MR) return tile<F, MR, NV>(part, group_ahead, x, x_rows, totals, stride);
    tile_of<F, MR - 1, NV>(rows, part, group_ahead, x, x_rows, totals, stride);
  }
}

// totals[group][rows][16] += rows . NV groups, in tiles of nearly equal height, at most MR. While tile g of a
// stage is computed, group g is decoded for the next one: there are NV tiles at least.
template <WeightFormat F, int MR, int NV, class T>
void staged_rows(const Codes* groups, int64_t blocks, const T* x, int64_t x_rows, int64_t rows,
                 float* totals) {
  Stage<T> stages[2][NV];
  const int64_t tiles = (rows + MR - 1) / MR;
  const auto stage_size = [&](int64_t begin) {
    const int64_t left = blocks - begin;
    return left < 0 ? 0 : left < kStageBlocks ? left : kStageBlocks;
  };
  for (int64_t i = 0; i < NV * stage_size(0); ++i) {
    const auto block = block_ahead<F, T>(groups[i % NV], i / NV, blocks, &stages[0][i % NV], i / NV);
    for (int p = 0; p < 16; ++p) block.step(p);
    block.finish();
  }
  for (int64_t begin = 0, turn = 0; begin < blocks; begin += kStageBlocks, turn ^= 1) {
    const Part<T> part{groups,
                       stages[turn],
                       begin,
                       stage_size(begin),
                       blocks,
                       stages[turn ^ 1],
                       stage_size(begin + kStageBlocks)};
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t first = rows * t / tiles, count = rows * (t + 1) / tiles - first;
      tile_of<F, MR, NV>(count, part, t, x + 32 * (x_rows * begin + first), x_rows, totals + 16 * first,
                         16 * rows);
    }
  }
}

// Groups that meet the rows together, and the others.
template <WeightFormat F, int MR, int NV, class T>
void many_rows(const Codes* groups, int64_t count, int64_t blocks, const T* x, int64_t x_rows, int64_t rows,
               float* totals) {
  if (NV == 2 && count == 2 && rows > MR) {
    return staged_rows<F, MR, NV>(groups, blocks, x, x_rows, rows, totals);
  }
  for (int64_t g = 0; g < count; ++g) {
    staged_rows<F, MR, 1>(groups + g, blocks, x, x_rows, rows, totals + 16 * rows * g);
  }
}

}  // namespace
}  // namespace di::linear_simd::DI_ISA
