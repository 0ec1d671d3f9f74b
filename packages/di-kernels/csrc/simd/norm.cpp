#include "simd/norm.hpp"

#include "simd/groups.hpp"

namespace di::norm_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

template <class T>
float inverse_rms_row(const T* x, int64_t n, float eps) {
  return inverse_rms(x, n, eps);
}

template <class T>
void rms_norm(const T* x, const uint8_t* weight, int64_t n, float eps, T* y, T* quantized) {
  const float rstd = inverse_rms(x, n, eps);
  const auto scaled = [=](int64_t i, auto lanes) __attribute__((always_inline)) {
    return (load_row(x + i, lanes) * rstd) * load_bytes(weight, i, lanes);
  };
  if (quantized == nullptr) {
    by_16(n, [&](int64_t i, auto lanes)
                 __attribute__((always_inline)) { store_row(y + i, scaled(i, lanes), lanes); });
    return;
  }
  for (int64_t i = 0; i < n; i += 32) {  // whole groups
    f32x16 a = rounded<T>(scaled(i, Whole{})), b = rounded<T>(scaled(i + 16, Whole{}));
    store_exact(y + i, a);
    store_exact(y + i + 16, b);
    round_trip_fp8(a, b);
    store_exact(quantized + i, a);
    store_exact(quantized + i + 16, b);
  }
}

template <class T>
constexpr Loops<T> loops = {.inverse_rms = inverse_rms_row<T>, .rms_norm = rms_norm<T>};

}  // namespace

const Table table = {.f32 = loops<float>, .b16 = loops<bf16>};

}  // namespace di::norm_simd::DI_ISA
