// Rows of a weight as stored to words of the packed layout (weight_layout.hpp). Only for sources of
// csrc/simd.
#pragma once

#include "simd/simd.hpp"
#include "weight_layout.hpp"

namespace di::simd::DI_ISA {

// Words of a row as stored to words of the packed layout: even inputs to the low half, odd ones to the high.
template <WeightFormat F>
DI_INLINE u32x16 split_halves(u32x16 w) {
  if constexpr (F == WeightFormat::mxfp4) {
    const u32x16 crossed = (w ^ (w >> 4)) & 0x00f000f0u;  // nibbles 1, 2 and 5, 6 change places
    w ^= crossed ^ (crossed << 4);
  }
  if constexpr (F == WeightFormat::mxfp4 || F == WeightFormat::fp8) {
#if defined(DI_AVX512)
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    return (u32x16)_mm512_shuffle_epi8((__m512i)w, order);
#else
    const u32x16 crossed = (w ^ (w >> 8)) & 0x0000ff00u;  // bytes 1 and 2 change places
    w ^= crossed ^ (crossed << 8);
#endif
  }
  return w;
}

#if defined(DI_AVX512)
// In each 128-bit lane, word j of v[i] becomes word i of out[j].
DI_INLINE void transpose_in_lanes(const __m512i (&v)[4], u32x16* out) {
  const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
  const __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
  out[0] = (u32x16)_mm512_unpacklo_epi64(a, b);
  out[1] = (u32x16)_mm512_unpackhi_epi64(a, b);
  out[2] = (u32x16)_mm512_unpacklo_epi64(c, d);
  out[3] = (u32x16)_mm512_unpackhi_epi64(c, d);
}
#endif

// Four words of each row, whose first one is at row(r): four vectors of one word of every row.
template <class Row>
DI_INLINE void transpose_words(const Row& row, u32x16* out) {
#if defined(DI_AVX512)
  __m512i v[4];  // lane q of v[i]: row 4q + i
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto piece = [&](int r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row(r))); };
    // Merged broadcasts leave the shuffle ports to the decoding.
    v[i] = _mm512_castsi128_si512(piece(i));
    v[i] = _mm512_mask_broadcast_i32x4(v[i], 0x00f0, piece(4 + i));
    v[i] = _mm512_mask_broadcast_i32x4(v[i], 0x0f00, piece(8 + i));
    v[i] = _mm512_mask_broadcast_i32x4(v[i], 0xf000, piece(12 + i));
  }
  transpose_in_lanes(v, out);
#else
  uint32_t word[4][16];
  for (int r = 0; r < 16; ++r) {
    uint32_t w[4];
    std::memcpy(w, row(r), sizeof w);
    for (int i = 0; i < 4; ++i) word[i][r] = w[i];
  }
  std::memcpy(out, word, sizeof word);
#endif
}

}  // namespace di::simd::DI_ISA
