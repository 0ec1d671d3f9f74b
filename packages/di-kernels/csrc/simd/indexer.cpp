#include "simd/indexer.hpp"

#include "simd/groups.hpp"
#include "simd/native.hpp"
#include "simd/raised_e2m1.hpp"
#include "simd/transpose.hpp"

namespace di::indexer_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

// Heads and vectors of columns whose sums stay in registers.
#if defined(DI_AVX512)
constexpr int kSumHeads = 4, kSumVectors = 4;
#else
constexpr int kSumHeads = 2, kSumVectors = 4;
#endif

constexpr float kE2m1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

// One column; E2M1 times a power of two is exact in bfloat16.
DI_INLINE void decode_column(const uint8_t* codes, const uint8_t* scales, int64_t dim, uint32_t* column) {
  for (int64_t group = 0; group < dim / 32; ++group) {
    const float scale = power_of_byte(scales[group]);
    uint32_t value[16];
    for (int i = 0; i < 8; ++i) {
      value[i] = as_bits(kE2m1[i] * scale) >> 16;
      value[i + 8] = as_bits(-kE2m1[i] * scale) >> 16;
    }
    for (int octet = 0; octet < 4; ++octet) {
      uint32_t word;
      std::memcpy(&word, codes + 16 * group + 4 * octet, sizeof word);
      for (int s = 0; s < 4; ++s) {
        const uint32_t low = value[word >> 4 * s & 15u], high = value[word >> (4 * s + 16) & 15u];
        column[(16 * group + 4 * octet + s) * kColumns] = low | high << 16;
      }
    }
  }
}

#if defined(DI_AVX512)

// 16 columns, 128 elements each. Returns false, having done nothing, where scales leave the range of
// scaled_e2m1().
DI_INLINE bool decode_16(const uint8_t* const* codes, const uint8_t* const* scales, int64_t chunk,
                         uint32_t* tile) {
  uint32_t scale_words[16];
  for (int i = 0; i < 16; ++i) std::memcpy(&scale_words[i], scales[i] + 4 * chunk, 4);
  const auto scale = load<u32x16>(scale_words);
  u32x16 of_group[4];
  bool normal = true;
#pragma GCC unroll 4
  for (int group = 0; group < 4; ++group) {
    of_group[group] = scale >> (8 * group) & 255u;
    normal &= keep_e2m1_normal(of_group[group]);
  }
  if (!normal) return false;
  __m512i words[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) words[i] = _mm512_loadu_si512(codes[i] + 64 * chunk);
  transpose_16(words);
#pragma GCC unroll 4
  for (int group = 0; group < 4; ++group) {
    const __m512i lowered = lowered_by(of_group[group]);
#pragma GCC unroll 4
    for (int octet = 4 * group; octet < 4 * group + 4; ++octet) {
#pragma GCC unroll 4
      for (int s = 0; s < 4; ++s) {
        store(tile + (64 * chunk + 4 * octet + s) * kColumns,
              scaled_e2m1((__m512i)((u32x16)words[octet] >> (4 * s)), lowered));
      }
    }
  }
  return true;
}

#endif

void decode_mxfp4(const uint8_t* const* codes, const uint8_t* const* scales, int64_t dim, uint32_t* tile) {
  for (int64_t c = 0; c < kColumns; c += 16) {
    bool done = false;
#if defined(DI_AVX512)
    done = dim % 128 == 0;
    for (int64_t chunk = 0; done && chunk < dim / 128; ++chunk) {
      done = decode_16(codes + c, scales + c, chunk, tile + c);
    }
#endif
    for (int64_t i = c; !done && i < c + 16; ++i) decode_column(codes[i], scales[i], dim, tile + i);
  }
}

// Nearest bfloat16, as a float32. A NaN here stands in its upper half, as it came from a bfloat16 number or
// is the default one, so it stays as it is.
DI_INLINE vf rounded(vf x) {
  const vu u = bits(x);
  return floats((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}

// A NaN stays one.
DI_INLINE vf rectified(vf x) {
#if defined(DI_AVX512)
  return (vf)_mm512_max_ps(_mm512_setzero_ps(), (__m512)x);
#else
  return select(x < 0.0f, vf{}, x);
#endif
}

// Any NaN as the default one (simd.hpp, one_nan).
DI_INLINE vf default_nan(vf x) { return select(x == x, x, repeat(__builtin_nanf(""))); }

template <int heads>
DI_INLINE void add_bf16(const uint32_t* q, const float* weights, int64_t pairs, const uint32_t* tile,
                        vf* sum) {
  vf acc[heads][kSumVectors] = {};
  for (int64_t p = 0; p < pairs; ++p) {
    vu key[kSumVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kSumVectors; ++v) key[v] = load<vu>(tile + p * kColumns + kWidth * v);
#pragma GCC unroll 4
    for (int h = 0; h < heads; ++h) {
      const vu query = repeat(q[h * pairs + p]);
#pragma GCC unroll 4
      for (int v = 0; v < kSumVectors; ++v) acc[h][v] = dot_bf16(acc[h][v], key[v], query);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < heads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kSumVectors; ++v) sum[v] += rounded(rectified(rounded(acc[h][v])) * weights[h]);
  }
}

template <int heads>
DI_INLINE void add_float(const float* q, const float* weights, int64_t dim, const float* tile, vf* sum) {
  vf acc[heads][kSumVectors] = {};
  for (int64_t d = 0; d < dim; ++d) {
    vf key[kSumVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kSumVectors; ++v) key[v] = load<vf>(tile + d * kColumns + kWidth * v);
#pragma GCC unroll 4
    for (int h = 0; h < heads; ++h) {
      const vf query = repeat(q[h * dim + d]);
#pragma GCC unroll 4
      for (int v = 0; v < kSumVectors; ++v) acc[h][v] = fma(key[v], query, acc[h][v]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < heads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kSumVectors; ++v) sum[v] += rectified(acc[h][v]) * weights[h];
  }
}

void scores_bf16(const uint32_t* q, const float* weights, int64_t heads, int64_t pairs, const uint32_t* tile,
                 const LaterLines&, float* out) {
  for (int64_t c = 0; c < kColumns; c += kWidth * kSumVectors) {
    vf sum[kSumVectors] = {};
    int64_t h = 0;
    for (; h + kSumHeads <= heads; h += kSumHeads) {
      add_bf16<kSumHeads>(q + h * pairs, weights + h, pairs, tile + c, sum);
    }
    for (; h < heads; ++h) add_bf16<1>(q + h * pairs, weights + h, pairs, tile + c, sum);
    for (int v = 0; v < kSumVectors; ++v) store(out + c + kWidth * v, rounded(default_nan(sum[v])));
  }
}

void scores_float(const float* q, const float* weights, int64_t heads, int64_t dim, const float* tile,
                  float* out) {
  for (int64_t c = 0; c < kColumns; c += kWidth * kSumVectors) {
    vf sum[kSumVectors] = {};
    int64_t h = 0;
    for (; h + kSumHeads <= heads; h += kSumHeads) {
      add_float<kSumHeads>(q + h * dim, weights + h, dim, tile + c, sum);
    }
    for (; h < heads; ++h) add_float<1>(q + h * dim, weights + h, dim, tile + c, sum);
    for (int v = 0; v < kSumVectors; ++v) store(out + c + kWidth * v, default_nan(sum[v]));
  }
}

}  // namespace

const Table table = {.decode_mxfp4 = decode_mxfp4, .scores_bf16 = scores_bf16, .scores_float = scores_float};

}  // namespace di::indexer_simd::DI_ISA
