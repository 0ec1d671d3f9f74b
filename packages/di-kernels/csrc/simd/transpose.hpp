// Square transposes in registers. Only for sources of csrc/simd.
#pragma once

#include "simd/simd.hpp"

namespace di::simd::DI_ISA {

#if defined(DI_AVX512)

// Dword j of row i becomes dword i of row j.
DI_INLINE void transpose_16(__m512i r[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

#endif

// out[j * stride + i] = in[i][j] for 16 x 16 words; `out` has no other alignment than that of a word.
DI_INLINE void transpose_16(const uint32_t (*in)[16], uint32_t* out, int64_t stride) {
#if defined(DI_AVX512)
  __m512i rows[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = _mm512_loadu_si512(in[i]);
  transpose_16(rows);
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) _mm512_storeu_si512(out + j * stride, rows[j]);
#else
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) out[j * stride + i] = in[i][j];
  }
#endif
}

}  // namespace di::simd::DI_ISA
