#include "simd/pack.hpp"

#include "simd/stored_words.hpp"

namespace di::pack_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

template <WeightFormat F>
void pack_rows(const uint8_t* const* row, int64_t blocks, uint8_t* out) {
  const int64_t words = blocks * words_of_block(F);
  for (int64_t w = 0; w < words; w += 4) {
    u32x16 v[4];
    transpose_words([&](int r) { return row[r] + 4 * w; }, v);
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
    transpose_words([&](int r) { return row[r] + b; }, v);
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
