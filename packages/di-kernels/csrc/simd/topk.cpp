#include "simd/topk.hpp"

#include "simd/simd.hpp"

namespace di::topk_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

constexpr int64_t kGroup = 64;  // scores that are compared before anything is appended
constexpr float kInfinity = __builtin_inff();

// One bit a lane.
DI_INLINE uint32_t above_bits(f32x16 a, f32x16 b) {
#if defined(DI_AVX512)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ);
#elif defined(DI_ISA_avx2)
  __m256 x[2], y[2];
  std::memcpy(x, &a, sizeof a);
  std::memcpy(y, &b, sizeof b);
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(x[0], y[0], _CMP_GT_OQ));
  return static_cast<uint32_t>(low | _mm256_movemask_ps(_mm256_cmp_ps(x[1], y[1], _CMP_GT_OQ)) << 8);
#else
  const i32x16 greater = a > b;
  uint32_t found = 0;
  for (int i = 0; i < 16; ++i) found |= (static_cast<uint32_t>(greater[i]) & 1u) << i;
  return found;
#endif
}

DI_INLINE f32x16 scores_of(const float* x) { return load<f32x16>(x); }
DI_INLINE f32x16 scores_of(const uint16_t* x) { return widen_bf16(load<u16x16>(x)); }

DI_INLINE i32x16 keys_of(f32x16 x) {
  const i32x16 u = (i32x16)bits(select(x == x, x, splat(-kInfinity)) + 0.0f);  // -0 + 0 is +0
  return u ^ ((u >> 31) & 0x7fffffff);
}

// The score that has this key.
DI_INLINE float score_of(int32_t key) {
  const int32_t u = key ^ ((key >> 31) & 0x7fffffff);
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

DI_INLINE void append(f32x16 x, uint32_t chosen, int32_t first, Kept* kept) {
  const i32x16 keys = keys_of(x);
#if defined(DI_AVX512)
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i index = _mm512_add_epi32(lane, _mm512_set1_epi32(first));
  const __mmask16 mask = static_cast<__mmask16>(chosen);
  _mm512_storeu_si512(kept->key + kept->count, _mm512_maskz_compress_epi32(mask, (__m512i)keys));
  _mm512_storeu_si512(kept->index + kept->count, _mm512_maskz_compress_epi32(mask, index));
  kept->count += __builtin_popcount(chosen);
#else
  int32_t lane[16];
  store(lane, keys);
  for (; chosen != 0; chosen &= chosen - 1) {
    const int i = __builtin_ctz(chosen);
    kept->key[kept->count] = lane[i];
    kept->index[kept->count++] = first + i;
  }
#endif
}

template <class T>
DI_INLINE int64_t filter(const T* x, int64_t n, int32_t first, int32_t above, int64_t limit, Kept* kept) {
  const bool everything = above == kBelowAll;
  const f32x16 bound = splat(everything ? 0.0f : score_of(above));
  int64_t i = 0;
  for (; i + kGroup <= n && kept->count <= limit; i += kGroup) {
    uint32_t chosen[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      chosen[v] = everything ? 0xffffu : above_bits(scores_of(x + i + 16 * v), bound);
    }
    if ((chosen[0] | chosen[1] | chosen[2] | chosen[3]) == 0) continue;
    for (int v = 0; v < 4; ++v) {
      if (chosen[v] == 0) continue;
      append(scores_of(x + i + 16 * v), chosen[v], first + static_cast<int32_t>(i) + 16 * v, kept);
    }
  }
  if (kept->count > limit) return i;
  for (; i < n; i += 16) {
    const int64_t rest = n - i < 16 ? n - i : 16;
    T lane[16] = {};
    std::memcpy(lane, x + i, static_cast<size_t>(rest) * sizeof(T));
    const f32x16 scores = scores_of(lane);
    const uint32_t chosen = (everything ? 0xffffu : above_bits(scores, bound)) & ((1u << rest) - 1u);
    append(scores, chosen, first + static_cast<int32_t>(i), kept);
  }
  return n;
}

int64_t filter_float(const float* x, int64_t n, int32_t first, int32_t above, int64_t limit, Kept* kept) {
  return filter(x, n, first, above, limit, kept);
}

int64_t filter_bf16(const uint16_t* x, int64_t n, int32_t first, int32_t above, int64_t limit, Kept* kept) {
  return filter(x, n, first, above, limit, kept);
}

// How many of the keys, whose number is a multiple of 16, are not below `least`.
DI_INLINE int64_t count_from(const int32_t* keys, int64_t n, int32_t least) {
  i32x16 found = {};
  for (int64_t i = 0; i < n; i += 16) found -= load<i32x16>(keys + i) >= least;
  int32_t lane[16];
  store(lane, found);
  int64_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += lane[i];
  return sum;
}

// Bit by bit from the highest one in which the keys differ: the largest value that k keys reach.
int32_t kth_largest(int32_t* keys, int64_t n, int64_t k) {
  int32_t low = keys[0], high = keys[0];
  for (int64_t i = 0; i < n; ++i) {
    low = keys[i] < low ? keys[i] : low;
    high = keys[i] > high ? keys[i] : high;
  }
  if (low == high) return low;
  const int64_t whole = (n + 15) / 16 * 16;
  for (int64_t i = n; i < whole; ++i) keys[i] = kBelowAll;
  constexpr uint32_t kSign = 0x80000000u;
  const int top = 31 - __builtin_clz(static_cast<uint32_t>(low ^ high));
  uint32_t value = (static_cast<uint32_t>(high) ^ kSign) & ~((2u << top) - 1u);  // in unsigned order
  for (int bit = top; bit >= 0; --bit) {
    const uint32_t larger = value | 1u << bit;
    if (count_from(keys, whole, static_cast<int32_t>(larger ^ kSign)) >= k) value = larger;
  }
  return static_cast<int32_t>(value ^ kSign);
}

DI_INLINE float larger(float a, float b) { return b > a ? b : a; }

void block_maxima(const float* x, int64_t n, int64_t size, float* out) {
  int64_t i = 0;
  if (size % 16 == 0) {
    for (; i + size <= n; i += size) {
      f32x16 top = splat(-kInfinity);
      for (int64_t j = 0; j < size; j += 16) top = max(top, load<f32x16>(x + i + j));
      float lane[16];
      store(lane, top);
      for (int width = 8; width > 0; width /= 2) {
        for (int j = 0; j < width; ++j) lane[j] = larger(lane[j], lane[j + width]);
      }
      *out++ = lane[0];
    }
  } else if (size == 8) {
    for (; i + 16 <= n; i += 16) {
      f32x16 top = max(splat(-kInfinity), load<f32x16>(x + i));
      top = max(top, __builtin_shufflevector(top, top, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
      top = max(top, __builtin_shufflevector(top, top, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
      top = max(top, __builtin_shufflevector(top, top, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
      *out++ = top[0];
      *out++ = top[8];
    }
  }
  for (; i < n; i += size) {
    float top = -kInfinity;
    for (int64_t j = i; j < n && j < i + size; ++j) top = larger(top, x[j]);
    *out++ = top;
  }
}

}  // namespace

const Table table = {.filter_float = filter_float,
                     .filter_bf16 = filter_bf16,
                     .kth_largest = kth_largest,
                     .block_maxima = block_maxima};

}  // namespace di::topk_simd::DI_ISA
