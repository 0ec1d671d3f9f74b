#include "simd/compress.hpp"

#include "simd/rows.hpp"

namespace di::compress_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

template <class T>
void pool(const float* score0, const float* latent0, const float* score1, const float* latent1, int64_t dim,
          T* out) {
  by_16(dim, [&](int64_t d, auto lanes) __attribute__((always_inline)) {
    const f32x16 s0 = load_row(score0 + d, lanes), s1 = load_row(score1 + d, lanes);
    const f32x16 top = select(s0 > s1, s0, s1);
    const f32x16 e0 = exp(s0 - top), e1 = exp(s1 - top), sum = e0 + e1;
    const f32x16 l0 = load_row(latent0 + d, lanes), l1 = load_row(latent1 + d, lanes);
    store_row(out + d, l0 * (e0 / sum) + l1 * (e1 / sum), lanes);
  });
}

}  // namespace

const Table table = {.f32 = {pool<float>}, .b16 = {pool<bf16>}};

}  // namespace di::compress_simd::DI_ISA
