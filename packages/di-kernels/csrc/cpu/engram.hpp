// Engram, the hashed n-gram memory (backbone specification, 5).
#pragma once

#include <cstdint>

#include "cpu/weight.hpp"
#include "numeric.hpp"

namespace di {

// windows [rows, n] of tokens [rows, n] (5.1, 5.2): compressed ids, `pad` at and beyond the first token
// outside the vocabulary; column 0 is -1 where the row's own token is outside.
void engram_windows(const int32_t* tokens, int64_t rows, int64_t n, const uint8_t* vocabulary,
                    int64_t vocabulary_size, int64_t pad, int64_t* windows);

// Constants of one layer's hash: multipliers [n], primes [n-1, heads], all positive, offsets [(n-1)*heads].
struct EngramHash {
  const int64_t* multipliers;
  const int64_t* primes;
  const int64_t* offsets;
  int64_t n, heads;
};

// ids [rows, (n-1)*heads] of windows [rows, n] (5.3); all -1 where column 0 of the window is negative.
void engram_hash(const int64_t* windows, int64_t rows, const EngramHash& hash, int64_t* ids);

// Rows of the n-gram memory [rows, dim]: plain values, or FP8 codes with one scale for 32 columns of a row.
struct EngramTable {
  Weight values;         // format float32, bfloat16, or fp8 without its scales
  const uint8_t* scale;  // [rows, dim/32], rows `scale_stride` apart; null for plain values
  int64_t scale_stride;
};

// y [count, dim] of ids [count]: table rows, zeros for a negative id; every id is below the rows of the
// table.
template <class T>
void engram_gather(const int64_t* ids, int64_t count, const EngramTable& table, T* y);

// Gates and adds the value to every stream of the active rows (5.6). stream, out [rows, m, dim]; kv [rows,
// (m+1)*dim]; weight [m, dim] is the product of the query and key weights.
template <class T>
void engram_inject(const T* stream, const T* kv, const float* weight, const bool* active, float eps,
                   int64_t rows, int64_t m, int64_t dim, T* out);

}  // namespace di
