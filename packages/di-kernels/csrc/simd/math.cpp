#include "simd/math.hpp"

#include "simd/simd.hpp"

namespace di::math_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

// y = f(x) for n elements; those behind the last whole vector are padded to one.
template <f32x16 (*f)(f32x16)>
DI_INLINE void map(const float* x, int64_t n, float* y) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(y + i, f(load<f32x16>(x + i)));
  if (i == n) return;
  float lanes[16] = {};
  std::memcpy(lanes, x + i, static_cast<size_t>(n - i) * sizeof(float));
  store(lanes, f(load<f32x16>(lanes)));
  std::memcpy(y + i, lanes, static_cast<size_t>(n - i) * sizeof(float));
}

void exp_all(const float* x, int64_t n, float* y) { map<simd::DI_ISA::exp>(x, n, y); }
void log_all(const float* x, int64_t n, float* y) { map<simd::DI_ISA::log>(x, n, y); }
void log1p_all(const float* x, int64_t n, float* y) { map<simd::DI_ISA::log1p>(x, n, y); }
void sigmoid_all(const float* x, int64_t n, float* y) { map<simd::DI_ISA::sigmoid>(x, n, y); }

}  // namespace

const Table table = {.exp = exp_all, .log = log_all, .log1p = log1p_all, .sigmoid = sigmoid_all};

}  // namespace di::math_simd::DI_ISA
