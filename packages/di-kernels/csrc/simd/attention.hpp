// Loops of sparse attention over one piece of keys: logits, running softmax, value product.
//
// A word holds what one step of a sum takes: two neighbouring bfloat16 elements (the even one in its low
// half) for dot_bf16, or one float32 element. Heads stand in lanes for the logits and the softmax, elements
// of the value for the product. All rows are padded with zeros. On amx bfloat16 words are added up 16 at a
// time, as its tiles do (amx/tiles.hpp).
#pragma once

#include <cstdint>
#include <type_traits>

#include "isa.hpp"
#include "numeric.hpp"
#include "simd/by_type.hpp"

namespace di::attention_simd {

constexpr int64_t kPiece = 64;  // keys of a piece
constexpr int64_t kHeads = 32;  // heads whose queries stay in the first-level cache
constexpr int64_t kTile = 64;   // elements of the value that stay there while all heads pass
constexpr int64_t kKeys = 8;    // keys are padded to a multiple of this number, or of another one
static_assert(kPiece % kKeys == 0);

template <class T>
using Word = std::conditional_t<std::is_same_v<T, bf16>, uint32_t, float>;
template <class T>
constexpr int64_t kPerWord = sizeof(uint32_t) / sizeof(T);

template <class T>
struct Loops {
  // A record of FP8 (FP4) values and scales as its elements, dim a multiple of 32; null: those of
  // csrc/simd/formats are as fast.
  void (*decode_fp8)(const uint8_t* record, int64_t dim, T* out);
  void (*decode_fp4)(const uint8_t* record, int64_t dim, T* out);
  // Keys are padded to a multiple of step_keys, heads to `lanes`, a multiple of kHeads, and vectors that are
  // scored to `words`, a multiple of step_words.
  int64_t step_keys, step_words;
  // q [heads, dim] as [lanes / kHeads, words, kHeads].
  void (*load_queries)(const T* q, int64_t heads, int64_t dim, int64_t words, Word<T>* out);
  // logits[i][h] = scale * (q_h . key_i), word by word, of all lanes and `count` keys; keys are `key_stride`
  // words apart.
  void (*score)(const Word<T>* q, int64_t lanes, const Word<T>* keys, int64_t words, int64_t key_stride,
                int64_t count, float scale, float* logits);
  // The step of the running softmax of all lanes: moves maximum and denominator, which are summed key by key,
  // and gives the factor of earlier sums. Logits are read up to a multiple of 4 keys. weights[w][lane] holds
  // what word w of the values is multiplied with, exp(logit - maximum), rounded to T; on amx a square of 16
  // words and 16 lanes lies there transposed, and what is behind the keys up to step_keys is zero.
  void (*fold)(const float* logits, int64_t lanes, int64_t count, float* maximum, float* denominator,
               float* rescale, Word<T>* weights);
  // kPerWord keys, `stride` apart, as a word of values [tiles, kPiece / kPerWord, kTile]: the same element of
  // each.
  void (*values)(const T* keys, int64_t stride, int64_t tiles, Word<T>* out);
  // sum[h] = sum[h] * rescale[h], then plus the weights of head h times the values of `count` keys, word by
  // word; sum is [tiles, lanes, kTile].
  void (*accumulate)(const Word<T>* weights, int64_t heads, int64_t lanes, const Word<T>* values,
                     int64_t tiles, int64_t count, const float* rescale, float* sum);
  // out[h][d] = sum / (denominator + exp(sink - maximum)).
  void (*finish)(const float* sum, const float* maximum, const float* denominator, const float* sink,
                 int64_t heads, int64_t lanes, int64_t dim, T* out);
};

using Table = ByType<Loops>;
DI_AMX_FAMILY

}  // namespace di::attention_simd
