#include "simd/route.hpp"

#include "simd/rows.hpp"

namespace di::route_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

// sqrt(softplus(logit)) (4.1); log1p keeps the scores of very negative logits apart.
DI_INLINE f32x16 expert_score(f32x16 logit) { return sqrt(select(logit > 20.0f, logit, log1p(exp(logit)))); }

// Numbers above 0 in the order of ranks: a NaN is the largest, so that it is never dropped unseen; both zeros
// are equal.
DI_INLINE u32x16 ordered_key(f32x16 rank) {
  const u32x16 u = bits(rank + 0.0f);
  const u32x16 key = u ^ ((u32x16)((i32x16)u >> 31) | 0x80000000u);
  return key | (u32x16)(rank != rank);
}

// The first of the largest keys.
DI_INLINE int64_t first_largest(const uint32_t* key, int64_t count) {
  u32x16 best{};
  i32x16 place{}, index{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (int64_t i = 0; i < count; i += 16) {
    const u32x16 k = load<u32x16>(key + i);
    const i32x16 larger = k > best;
    best = larger ? k : best;
    place = larger ? index : place;
    index += 16;
  }
  uint32_t top = 0;
  int32_t first = 0;
  for (int lane = 0; lane < 16; ++lane) {
    if (best[lane] > top || (best[lane] == top && place[lane] < first)) {
      top = best[lane];
      first = place[lane];
    }
  }
  return first;
}

void route(const float* logits, const uint8_t* bias, int64_t experts, int64_t top_k, float scale,
           float* score, uint32_t* key, int32_t* ids, float* weights) {
  by_16(experts, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
    const f32x16 s = expert_score(load_row(logits + i, lanes));
    store(score + i, s);
    store(key + i, ordered_key(s + load_bytes(bias, i, lanes)));
  });
  for (int64_t e = experts; e < padded(experts); ++e) key[e] = 0;
  float sum = 0.0f;
  for (int64_t slot = 0; slot < top_k; ++slot) {
    const int64_t best = first_largest(key, padded(experts));
    key[best] = 0;
    ids[slot] = static_cast<int32_t>(best);
    weights[slot] = score[best];
    sum += score[best];
  }
  for (int64_t slot = 0; slot < top_k; ++slot)
    weights[slot] = one_nan(weights[slot] / (sum + 1e-20f) * scale);
}

}  // namespace

const Table table = {.route = route};

}  // namespace di::route_simd::DI_ISA
