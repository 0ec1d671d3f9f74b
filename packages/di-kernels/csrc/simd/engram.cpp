#include "simd/engram.hpp"

#include "simd/rows.hpp"

namespace di::engram_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

template <class Stored, class T>
void convert(const uint8_t* row, int64_t n, T* y) {
  if constexpr (sizeof(Stored) == sizeof(T)) {
    std::memcpy(y, row, static_cast<size_t>(n) * sizeof(T));
  } else {
    const auto* x = reinterpret_cast<const Stored*>(row);  // only its address is used
    by_16(n, [&](int64_t i, auto lanes)
                 __attribute__((always_inline)) { store_row(y + i, load_row(x + i, lanes), lanes); });
  }
}

// Of a similarity (5.6). A NaN stays one.
DI_INLINE float gate_of(float similarity) {
  const float magnitude = __builtin_fabsf(similarity);
  const float root = __builtin_sqrtf(magnitude < 1e-6f ? 1e-6f : magnitude);
  return sigmoid(splat(__builtin_copysignf(root, similarity)))[0];
}

template <class T>
void inject(const T* query, const T* key, const T* value, const float* weight, float eps, int64_t dim,
            T* out) {
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(dim));
  const float product = sum_row(dim, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
    return (load_row(query + i, lanes) * load_row(weight + i, lanes)) * load_row(key + i, lanes);
  });
  const float query_rstd = inverse_rms(query, dim, eps), key_rstd = inverse_rms(key, dim, eps);
  const float factor = gate_of(product * query_rstd * key_rstd * scale);
  by_16(dim, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
    store_row(out + i, load_row(query + i, lanes) + factor * load_row(value + i, lanes), lanes);
  });
}

template <class T>
constexpr Loops<T> loops = {.from_f32 = convert<float, T>, .from_b16 = convert<bf16, T>, .inject = inject<T>};

}  // namespace

const Table table = {.f32 = loops<float>, .b16 = loops<bf16>};

}  // namespace di::engram_simd::DI_ISA
