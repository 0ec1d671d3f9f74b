#include "simd/attention.hpp"

#include "simd/key_decode.hpp"
#include "simd/native.hpp"
#include "simd/rows.hpp"
#include "simd/transpose.hpp"

namespace di::attention_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

// Sums that stay in registers: of kScoreKeys keys and kScoreVectors vectors of heads, and of kSumHeads heads
// and kSumVectors vectors of elements.
#if defined(DI_AVX512)
constexpr int kScoreKeys = 8, kScoreVectors = 2, kSumHeads = 4, kSumVectors = 4;
#else
constexpr int kScoreKeys = 4, kScoreVectors = 2, kSumHeads = 4, kSumVectors = 2;
#endif
static_assert(kKeys % kScoreKeys == 0 && kHeads % (kWidth * kScoreVectors) == 0);
static_assert(kTile % (kWidth * kSumVectors) == 0);

DI_INLINE float base_of(float maximum) { return maximum == -__builtin_inff() ? 0.0f : maximum; }
DI_INLINE f32x16 base_of(f32x16 maximum) {
  return select(maximum == -__builtin_inff(), f32x16{}, maximum);  // -inf - -inf would be NaN
}

DI_INLINE float exp(float x) { return simd::DI_ISA::exp(splat(x))[0]; }

DI_INLINE vf multiply_add(vf acc, vf a, vf b) { return fma(a, b, acc); }
DI_INLINE vf multiply_add(vf acc, vu a, vu b) { return dot_bf16(acc, a, b); }

DI_INLINE vf load_words(const float* p) { return load<vf>(p); }
DI_INLINE vu load_words(const uint32_t* p) { return load<vu>(p); }

// 16 heads from words `first` on, of which the array has some.
template <class T>
DI_INLINE void load_block(const T* q, int64_t heads, int64_t dim, int64_t first, uint32_t (*block)[16]) {
  constexpr int64_t kElements = 16 * kPerWord<T>;
  const int64_t begin = first * kPerWord<T>;
  const int64_t n = dim - begin < kElements ? dim - begin : kElements;
  for (int64_t h = 0; h < 16; ++h) {
    if (h < heads && n == kElements) {
      std::memcpy(block[h], q + h * dim + begin, 64);
    } else {
      std::memset(block[h], 0, 64);
      if (h < heads) std::memcpy(block[h], q + h * dim + begin, static_cast<size_t>(n) * sizeof(T));
    }
  }
}

template <class T>
void load_queries(const T* q, int64_t heads, int64_t dim, int64_t words, Word<T>* out) {
  for (int64_t h = 0; h < heads; h += 16) {
    uint32_t* group = reinterpret_cast<uint32_t*>(out) + h / kHeads * words * kHeads + h % kHeads;
    for (int64_t w = 0; w < words; w += 16) {
      uint32_t block[16][16], turned[16][16];
      load_block(q + h * dim, heads - h, dim, w, block);
      if (w + 16 <= words) {
        transpose_16(block, group + w * kHeads, kHeads);
        continue;
      }
      transpose_16(block, turned[0], 16);
      for (int64_t i = 0; w + i < words; ++i) std::memcpy(group + (w + i) * kHeads, turned[i], 64);
    }
  }
}

template <class T>
DI_INLINE void score_keys(const Word<T>* q, const Word<T>* keys, int64_t words, int64_t key_stride,
                          float scale, float* logits, int64_t stride) {
  vf acc[kScoreKeys][kScoreVectors] = {};
  for (int64_t w = 0; w < words; ++w) {
    decltype(load_words(q)) query[kScoreVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kScoreVectors; ++v) query[v] = load_words(q + w * kHeads + v * kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < kScoreKeys; ++i) {
      const auto key = repeat(keys[i * key_stride + w]);
#pragma GCC unroll 8
      for (int v = 0; v < kScoreVectors; ++v) acc[i][v] = multiply_add(acc[i][v], query[v], key);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kScoreKeys; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kScoreVectors; ++v) store(logits + i * stride + v * kWidth, acc[i][v] * scale);
  }
}

template <class T>
void score(const Word<T>* q, int64_t lanes, const Word<T>* keys, int64_t words, int64_t key_stride,
           int64_t count, float scale, float* logits) {
  for (int64_t group = 0; group < lanes; group += kHeads) {
    const Word<T>* queries = q + group * words;
    for (int64_t i = 0; i < count; i += kScoreKeys) {
      for (int64_t h = 0; h < kHeads; h += kWidth * kScoreVectors) {
        score_keys<T>(queries + h, keys + i * key_stride, words, key_stride, scale,
                      logits + i * lanes + group + h, lanes);
      }
    }
  }
}

// Weights of four keys, those of one behind the last key 0.
DI_INLINE void put_weights(const f32x16* p, int64_t lanes, float* out) {
  for (int j = 0; j < 4; ++j) store(out + j * lanes, p[j]);
}
DI_INLINE void put_weights(const f32x16* p, int64_t lanes, uint32_t* out) {
  store(out, bits(round_bf16(p[0])) >> 16 | bits(round_bf16(p[1])));
  store(out + lanes, bits(round_bf16(p[2])) >> 16 | bits(round_bf16(p[3])));
}

template <class T>
DI_INLINE void fold_16(const float* logits, int64_t lanes, int64_t count, float* maximum, float* denominator,
                       float* rescale, Word<T>* weights) {
  const f32x16 before = load<f32x16>(maximum);
  f32x16 top = before;
  for (int64_t i = 0; i < count; ++i) top = max(top, load<f32x16>(logits + i * lanes));
  const f32x16 base = base_of(top);
  f32x16 added = {};
  for (int64_t i = 0; i < count; i += 4) {
    f32x16 p[4];
    for (int j = 0; j < 4; ++j) p[j] = load<f32x16>(logits + (i + j) * lanes) - base;
    simd::DI_ISA::exp(p);
    for (int64_t j = count - i; j < 4; ++j) p[j] = f32x16{};
    for (int j = 0; j < 4; ++j) added += p[j];  // + 0 changes nothing
    put_weights(p, lanes, weights + i / kPerWord<T> * lanes);
  }
  const f32x16 factor = simd::DI_ISA::exp(before - base);
  store(rescale, factor);
  store(denominator, load<f32x16>(denominator) * factor + added);
  store(maximum, top);
}

template <class T>
void fold(const float* logits, int64_t lanes, int64_t count, float* maximum, float* denominator,
          float* rescale, Word<T>* weights) {
  for (int64_t h = 0; h < lanes; h += 16) {
    fold_16<T>(logits + h, lanes, count, maximum + h, denominator + h, rescale + h, weights + h);
  }
}

// 32 elements of a key, or of two: words of the same elements.
DI_INLINE void pair_up(const float* key, const float*, float* out) { std::memcpy(out, key, 128); }
DI_INLINE void pair_up(const bf16* even, const bf16* odd, uint32_t* out) {
#if defined(DI_AVX512)
  typedef int16_t i16x32 __attribute__((vector_size(64)));
  const i16x32 lane = {0, 0, 1, 1, 2,  2,  3,  3,  4,  4,  5,  5,  6,  6,  7,  7,
                       8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15};
  const i16x32 first = lane | (i16x32)(u32x16{} + (32u << 16));
  const __m512i a = load<__m512i>(even), b = load<__m512i>(odd);
  store(out, _mm512_permutex2var_epi16(a, (__m512i)first, b));
  store(out + 16, _mm512_permutex2var_epi16(a, (__m512i)(first + 16), b));
#else
  for (int i = 0; i < 32; i += 16) {
    const u32x16 low = __builtin_convertvector(load<u16x16>(even + i), u32x16);
    const u32x16 high = __builtin_convertvector(load<u16x16>(odd + i), u32x16);
    store(out + i, low | high << 16);
  }
#endif
}

template <class T>
void values(const T* keys, int64_t stride, int64_t tiles, Word<T>* out) {
  for (int64_t t = 0; t < tiles; ++t) {
    for (int64_t d = 0; d < kTile; d += 32) {
      const T* key = keys + t * kTile + d;
      pair_up(key, key + stride, out + t * (kPiece / kPerWord<T> * kTile) + d);
    }
  }
}

template <class T, int count>
DI_INLINE void sum_heads(const Word<T>* weights, int64_t stride, const Word<T>* values, int64_t words,
                         const float* rescale, float* sum) {
  vf acc[count][kSumVectors];
#pragma GCC unroll 8
  for (int h = 0; h < count; ++h) {
#pragma GCC unroll 8
    for (int v = 0; v < kSumVectors; ++v) acc[h][v] = load<vf>(sum + h * kTile + v * kWidth) * rescale[h];
  }
  for (int64_t w = 0; w < words; ++w) {
    decltype(load_words(values)) value[kSumVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kSumVectors; ++v) value[v] = load_words(values + w * kTile + v * kWidth);
#pragma GCC unroll 8
    for (int h = 0; h < count; ++h) {
      const auto weight = repeat(weights[w * stride + h]);
#pragma GCC unroll 8
      for (int v = 0; v < kSumVectors; ++v) acc[h][v] = multiply_add(acc[h][v], value[v], weight);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < count; ++h) {
#pragma GCC unroll 8
    for (int v = 0; v < kSumVectors; ++v) store(sum + h * kTile + v * kWidth, acc[h][v]);
  }
}

template <class T>
void accumulate_tile(const Word<T>* weights, int64_t heads, int64_t lanes, const Word<T>* values,
                     int64_t words, const float* rescale, float* sum) {
  int64_t h = 0;
  for (; h + kSumHeads <= heads; h += kSumHeads) {
    for (int64_t d = 0; d < kTile; d += kWidth * kSumVectors) {
      sum_heads<T, kSumHeads>(weights + h, lanes, values + d, words, rescale + h, sum + h * kTile + d);
    }
  }
  for (; h < heads; ++h) {
    for (int64_t d = 0; d < kTile; d += kWidth * kSumVectors) {
      sum_heads<T, 1>(weights + h, lanes, values + d, words, rescale + h, sum + h * kTile + d);
    }
  }
}

template <class T>
void accumulate(const Word<T>* weights, int64_t heads, int64_t lanes, const Word<T>* values, int64_t tiles,
                int64_t count, const float* rescale, float* sum) {
  const int64_t words = (count + kPerWord<T> - 1) / kPerWord<T>;
  for (int64_t t = 0; t < tiles; ++t) {
    accumulate_tile<T>(weights, heads, lanes, values + t * (kPiece / kPerWord<T> * kTile), words, rescale,
                       sum + t * lanes * kTile);
  }
}

template <class T>
void finish(const float* sum, const float* maximum, const float* denominator, const float* sink,
            int64_t heads, int64_t lanes, int64_t dim, T* out) {
  for (int64_t h = 0; h < heads; ++h) {
    const float total = denominator[h] + exp(sink[h] - base_of(maximum[h]));
    by_16(dim, [&](int64_t d, auto elements) __attribute__((always_inline)) {
      const float* part = sum + (d / kTile * lanes + h) * kTile + d % kTile;
      store_row(out + h * dim + d, load<f32x16>(part) / total, elements);
    });
  }
}

template <class T>
using Decode = void (*)(const uint8_t* record, int64_t dim, T* out);

template <class T>
constexpr Decode<T> fast_fp8() {
#if defined(DI_AVX512)
  if constexpr (std::is_same_v<T, bf16>)
    return [](const uint8_t* record, int64_t dim, bf16* out) { decode_fp8(record, dim, out); };
#endif
  return nullptr;
}

template <class T>
constexpr Decode<T> fast_fp4() {
#if defined(DI_AVX512)
  if constexpr (std::is_same_v<T, bf16>)
    return [](const uint8_t* record, int64_t dim, bf16* out) { decode_fp4(record, dim, out); };
#endif
  return nullptr;
}

template <class T>
constexpr Loops<T> loops = {
    .decode_fp8 = fast_fp8<T>(),
    .decode_fp4 = fast_fp4<T>(),
    .step_keys = kKeys,
    .step_words = 1,
    .load_queries = load_queries<T>,
    .score = score<T>,
    .fold = fold<T>,
    .values = values<T>,
    .accumulate = accumulate<T>,
    .finish = finish<T>,
};

}  // namespace

const Table table = {.f32 = loops<float>, .b16 = loops<bf16>};

}  // namespace di::attention_simd::DI_ISA
