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

struct SamplingParameters {  // one value a row
  const double* temperature;
  const int64_t* top_k;
  const double* top_p;
  const double* min_p;
  const int64_t* seeds;
  const int64_t* positions;
};

void philox(const int64_t* seeds, const int64_t* positions, int64_t purpose, Rows<int64_t> out);
void all_finite(Logits logits, bool* out);
void argmax(Logits logits, int64_t* out);
void log_softmax(Logits logits, Rows<float> out);
void logprobs_at(Logits logits, const int64_t* ids, float* out);
void token_ranks(Logits logits, const int64_t* ids, int64_t* out);
void top_logprobs(Logits logits, int64_t k, int64_t* ids, float* logprobs);
void apply_penalties(Rows<float> logits, RowEntries entries, const int32_t* output_counts,
                     const float* repetition, const float* presence, const float* frequency);
void apply_bias(Rows<float> logits, RowEntries entries, const float* values);
void sample(Logits logits, SamplingParameters parameters, int64_t* out);

}  // namespace di
