#include "simd/rope.hpp"

#include "simd/rows.hpp"

namespace di::rope_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

struct Pairs {
  f32x16 first, second;
};

DI_INLINE Pairs load_pairs(const bf16* x) {
  const u32x16 pair = load<u32x16>(x);
  return {floats(pair << 16), floats(pair & 0xffff0000u)};
}

DI_INLINE Pairs load_pairs(const float* x) {
  const f32x16 a = load<f32x16>(x), b = load<f32x16>(x + 16);
  return {__builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30),
          __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31)};
}

DI_INLINE void store_pairs(bf16* y, Pairs p) {
  store(y, (bits(round_bf16(p.first)) >> 16) | bits(round_bf16(p.second)));
}

DI_INLINE void store_pairs(float* y, Pairs p) {
  const f32x16 a = one_nan(p.first), b = one_nan(p.second);
  store(y, __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
  store(y + 16, __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
}

template <class T>
DI_INLINE void rotate_16(const T* x, f32x16 c, f32x16 s, T* y) {
  const Pairs p = load_pairs(x);
  store_pairs(y, {p.first * c - p.second * s, p.first * s + p.second * c});
}

template <class T>
void rotate(const T* x, const float* cosine, const float* sine, float sign, int64_t pairs, T* y) {
  int64_t i = 0;
  for (; i + 16 <= pairs; i += 16) {
    rotate_16(x + 2 * i, load<f32x16>(cosine + i), sign * load<f32x16>(sine + i), y + 2 * i);
  }
  if (i == pairs) return;
  const Part rest{pairs - i};
  T lanes[32] = {};
  std::memcpy(lanes, x + 2 * i, static_cast<size_t>(2 * rest.n) * sizeof(T));
  rotate_16(lanes, load_row(cosine + i, rest), sign * load_row(sine + i, rest), lanes);
  std::memcpy(y + 2 * i, lanes, static_cast<size_t>(2 * rest.n) * sizeof(T));
}

}  // namespace

const Table table = {.f32 = {.rotate = rotate<float>}, .b16 = {.rotate = rotate<bf16>}};

}  // namespace di::rope_simd::DI_ISA
