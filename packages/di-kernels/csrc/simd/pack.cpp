#include "simd/pack.hpp"

#include "simd/simd.hpp"

namespace di::pack_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

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
// Four words of each row: four vectors of one word of every row.
DI_INLINE void transpose(const uint8_t* const* row, int64_t offset, u32x16* out) {
  __m512i v[4];  // lane q of v[i]: row 4q + i
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const auto piece = [&](int r) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[r] + offset));
    };
    v[i] = _mm512_castsi128_si512(piece(i));
    v[i] = _mm512_inserti32x4(v[i], piece(4 + i), 1);
    v[i] = _mm512_inserti32x4(v[i], piece(8 + i), 2);
    v[i] = _mm512_inserti32x4(v[i], piece(12 + i), 3);
  }
  const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
  const __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
  out[0] = (u32x16)_mm512_unpacklo_epi64(a, b);
  out[1] = (u32x16)_mm512_unpackhi_epi64(a, b);
  out[2] = (u32x16)_mm512_unpacklo_epi64(c, d);
  out[3] = (u32x16)_mm512_unpackhi_epi64(c, d);
}
#else
DI_INLINE void transpose(const uint8_t* const* row, int64_t offset, u32x16* out) {
  uint32_t word[4][16];
  for (int r = 0; r < 16; ++r) {
    uint32_t w[4];
    std::memcpy(w, row[r] + offset, sizeof w);
    for (int i = 0; i < 4; ++i) word[i][r] = w[i];
  }
  std::memcpy(out, word, sizeof word);
}
#endif

template <WeightFormat F>
void pack_rows(const uint8_t* const* row, int64_t blocks, uint8_t* out) {
  const int64_t words = blocks * words_of_block(F);
  for (int64_t w = 0; w < words; w += 4) {
    u32x16 v[4];
    transpose(row, 4 * w, v);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) store(out + 64 * (w + i), split_halves<F>(v[i]));
  }
}

void pack_blocks(WeightFormat format, const uint8_t* const* row, int64_t blocks, uint8_t* out) {
  switch (format) {
    case WeightFormat::float32:
      return pack_rows<WeightFormat::float32>(row, blocks, out);
    case WeightFormat::bfloat16:
      return pack_rows<WeightFormat::bfloat16>(row, blocks, out);
    case WeightFormat::fp8:
      return pack_rows<WeightFormat::fp8>(row, blocks, out);
    case WeightFormat::mxfp4:
      return pack_rows<WeightFormat::mxfp4>(row, blocks, out);
  }
}

void pack_scales(const uint8_t* const* row, int64_t blocks, uint8_t* out) {
  int64_t b = 0;
#if defined(DI_AVX512)
  // Bytes of a block together within each lane, then the lanes' words of a block together.
  const __m512i bytes =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m512i words = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (; b + 16 <= blocks; b += 16) {
    u32x16 v[4];  // four blocks of every row
    transpose(row, b, v);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i grouped = _mm512_shuffle_epi8((__m512i)v[i], bytes);
      store(out + 16 * (b + 4 * i), (u32x16)_mm512_permutexvar_epi32(words, grouped));
    }
  }
#endif
  for (; b < blocks; ++b) {
    for (int r = 0; r < 16; ++r) out[16 * b + r] = row[r][b];
  }
}

}  // namespace

const Table table = {.blocks = pack_blocks, .scales = pack_scales};

}  // namespace di::pack_simd::DI_ISA
