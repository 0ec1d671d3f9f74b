#include "simd/ceilings.hpp"

#include "simd/simd.hpp"

namespace di::ceilings_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

constexpr int64_t kLine = 64;
constexpr int64_t kAhead = 64 * kLine;  // how far the prefetch is in front

uint64_t read(const uint8_t* p, int64_t n) {
  u32x16 sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLine <= n; i += 4 * kLine) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      __builtin_prefetch(p + i + kAhead + j * kLine);  // never faults, also not behind the end
      sum[j] ^= load<u32x16>(p + i + j * kLine);
    }
  }
  for (; i + kLine <= n; i += kLine) sum[0] ^= load<u32x16>(p + i);
  uint64_t words[8];
  store(words, (sum[0] ^ sum[1]) ^ (sum[2] ^ sum[3]));
  uint64_t all = 0;
  for (const uint64_t word : words) all ^= word;
  return all;
}

// Vectors as wide as the registers are: the two halves of an f32x16 would pass through memory.
#if defined(DI_ISA_avx2)
typedef float Vector __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
DI_INLINE Vector multiply_add(Vector a, Vector b, Vector c) {
  return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
DI_INLINE Vector dot(Vector sum, Words a, Words b) {
  sum = multiply_add((Vector)(a & 0xffff0000u), (Vector)(b & 0xffff0000u), sum);
  return multiply_add((Vector)(a << 16), (Vector)(b << 16), sum);
}
#else
typedef f32x16 Vector;
typedef u32x16 Words;
DI_INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return fma(a, b, c); }
DI_INLINE Vector dot(Vector sum, Words a, Words b) { return dot_bf16(sum, a, b); }
#endif
constexpr int64_t kSums = 12;  // sums that do not wait for each other: enough to hide the latency
constexpr int64_t kVectors = kSteps * static_cast<int64_t>(sizeof(f32x16) / sizeof(Vector));

// The sums differ, so that none can stand for another.
template <class V, class Step>
DI_INLINE float repeat(int64_t iterations, V a, V b, Step step) {
  Vector sum[kSums];
  for (int64_t j = 0; j < kSums; ++j) sum[j] = Vector{} + static_cast<float>(j);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 24
    for (int64_t j = 0; j < kVectors; ++j) sum[j % kSums] = step(sum[j % kSums], a, b);
  }
  for (int64_t j = 1; j < kSums; ++j) sum[0] += sum[j];
  return sum[0][0];
}

float dot_bf16_loop(int64_t iterations) {
  const Words halves = Words{} + 0x3f003f00u;  // two bfloat16 numbers 0.5
  return repeat(iterations, halves, halves, [](Vector sum, Words a, Words b) { return dot(sum, a, b); });
}

float multiply_add_loop(int64_t iterations) {
  const Vector half = Vector{} + 0.5f;
  return repeat(iterations, half, half,
                [](Vector sum, Vector a, Vector b) { return multiply_add(a, b, sum); });
}

}  // namespace

const Table table = {
    .read = read, .dot_flops = kSteps * 16 * 4, .dot_bf16 = dot_bf16_loop, .multiply_add = multiply_add_loop};

}  // namespace di::ceilings_simd::DI_ISA
