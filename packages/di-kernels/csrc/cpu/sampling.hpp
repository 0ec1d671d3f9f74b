// Logits to tokens and log-probabilities. The contract is in src/di_kernels/ops/sampling.py.
#pragma once

#include <cstdint>

namespace di {

// A matrix whose rows are dense and `stride` elements apart.
template <class T>
struct Rows {
  T* data;
  int64_t count, columns, stride;
  T* operator[](int64_t r) const { return data + r * stride; }
};
using Logits = Rows<const float>;

// Entries row_starts[r] .. row_starts[r+1]-1 belong to row r.
struct RowEntries {
  const int64_t* row_starts;
  const int64_t* token_ids;
};

// What one row is drawn with; the layout of di_kernels.ops.sampling.PARAMETERS.
struct SamplingParameters {
  double temperature, top_p, min_p;
  int64_t top_k;
  uint64_t seed;
};

// What is said about one token of each row, and about the k best ones.
struct TokenDescriptions {
  float* logprobs;  // [rows]
  int64_t* ranks;   // [rows], from 1
  int64_t k;
  int64_t* top_ids;     // [rows, k]
  float* top_logprobs;  // [rows, k]
};

void philox(const int64_t* seeds, const int64_t* positions, int64_t purpose, Rows<int64_t> out);
void all_finite(Logits logits, bool* out);
void argmax(Logits logits, int64_t* out);
void log_softmax(Logits logits, Rows<float> out);
void describe_tokens(Logits logits, const int64_t* ids, TokenDescriptions out);
void apply_penalties(Rows<float> logits, RowEntries entries, const int32_t* output_counts,
                     const float* repetition, const float* presence, const float* frequency);
void apply_bias(Rows<float> logits, RowEntries entries, const float* values);
// Rejects columns whose bit is 0. Words [count, (columns + 31) / 32], bit c % 32 of word c / 32; of logits
// rows[i], or of row i when `rows` is null.
void apply_bitmask(Rows<float> logits, Rows<const uint32_t> words, const int64_t* rows);
// Draws from logits rows[i], or from row i when `rows` is null, for i below `count`.
void choose(Logits logits, const int64_t* rows, int64_t count, const SamplingParameters* parameters,
            const int64_t* positions, int64_t* tokens, bool* finite);

}  // namespace di
