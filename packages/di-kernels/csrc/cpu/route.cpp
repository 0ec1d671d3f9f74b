#include "cpu/route.hpp"

#include <algorithm>
#include <vector>

#include "parallel.hpp"
#include "simd/hyper.hpp"
#include "simd/route.hpp"

namespace di {
void route(const float* logits, const uint8_t* bias, int64_t bias_row_bytes, int64_t rows, int64_t experts,
           int64_t top_k, float scale, int32_t* ids, float* weights) {
  const auto loop = route_simd::active().route;
  const auto size = static_cast<size_t>(route_simd::padded(experts));
  parallel_for(rows, 4 * kPerElement * experts, [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> score;  // grows once
    thread_local std::vector<uint32_t> key;
    score.resize(std::max(score.size(), size));
    key.resize(std::max(key.size(), size));
    for (int64_t r = begin; r < end; ++r) {
      loop(logits + r * experts, bias + r * bias_row_bytes, experts, top_k, scale, score.data(), key.data(),
           ids + r * top_k, weights + r * top_k);
    }
  });
}

template <class T>
void combine(const T* shared, const T* routed, T* y, int64_t rows, int64_t slots, int64_t dim) {
  const auto loop = hyper_simd::active().of<T>().combine;
  parallel_for(rows, kPerElement * slots * dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      loop(shared + r * dim, routed + r * slots * dim, slots, dim, y + r * dim);
    }
  });
}

template void combine<float>(const float*, const float*, float*, int64_t, int64_t, int64_t);
template void combine<bf16>(const bf16*, const bf16*, bf16*, int64_t, int64_t, int64_t);

}  // namespace di
