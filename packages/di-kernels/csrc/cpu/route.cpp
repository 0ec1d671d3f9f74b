#include "cpu/route.hpp"

#include <cmath>
#include <vector>

#include "cpu/weight.hpp"
#include "parallel.hpp"
#include "simd/hyper.hpp"

namespace di {
namespace {

// sqrt(softplus(logit)) (4.1); log1p keeps the scores of very negative logits apart.
float expert_score(float logit) { return std::sqrt(logit > 20.0f ? logit : std::log1p(std::exp(logit))); }

// Whether rank a goes before rank b: a NaN first, so that it is never dropped unseen, then the larger.
bool goes_before(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && !std::isnan(b);
  return a > b;
}

void route_row(const float* score, const float* rank, int64_t experts, int64_t top_k, float scale,
               int32_t* ids, float* weights) {
  std::vector<bool> taken(static_cast<size_t>(experts));
  float sum = 0.0f;
  for (int64_t slot = 0; slot < top_k; ++slot) {
    int64_t best = -1;
    for (int64_t e = 0; e < experts; ++e) {
      if (!taken[e] && (best < 0 || goes_before(rank[e], rank[best]))) best = e;
    }
    taken[best] = true;
    ids[slot] = static_cast<int32_t>(best);
    weights[slot] = score[best];
    sum += score[best];
  }
  for (int64_t slot = 0; slot < top_k; ++slot) weights[slot] = weights[slot] / (sum + 1e-20f) * scale;
}

}  // namespace

void route(const float* logits, const uint8_t* bias, int64_t bias_row_bytes, int64_t rows, int64_t experts,
           int64_t top_k, float scale, int32_t* ids, float* weights) {
  parallel_for(rows, 32 * experts, [&](int64_t begin, int64_t end) {
    std::vector<float> score(static_cast<size_t>(experts)), rank(static_cast<size_t>(experts));
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t e = 0; e < experts; ++e) {
        score[e] = expert_score(logits[r * experts + e]);
        rank[e] = score[e] + load_unaligned<float>(bias + r * bias_row_bytes, e);
      }
      route_row(score.data(), rank.data(), experts, top_k, scale, ids + r * top_k, weights + r * top_k);
    }
  });
}

template <class T>
void combine(const T* shared, const T* routed, T* y, int64_t rows, int64_t slots, int64_t dim) {
  const auto loop = hyper_simd::active().of<T>().combine;
  parallel_for(rows, slots * dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      loop(shared + r * dim, routed + r * slots * dim, slots, dim, y + r * dim);
    }
  });
}

template void combine<float>(const float*, const float*, float*, int64_t, int64_t, int64_t);
template void combine<bf16>(const bf16*, const bf16*, bf16*, int64_t, int64_t, int64_t);

}  // namespace di
