// Sums with one fixed order for a given length: 64 interleaved partial sums, then a fixed tree.
// Multiplication and addition stay separate (no contraction), so every instruction set gives the same bits.
#pragma once

#include <cstdint>
#include <cstring>

// Compile the marked function once per instruction set and choose at load time.
#if defined(__x86_64__) && defined(__GNUC__) && defined(__linux__) && !defined(DI_SANITIZE)
#define DI_MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DI_MULTIVERSION
#endif

namespace di {

// A vector of one instruction set must not cross a call into code compiled for another: what follows is
// always inlined.
typedef float f32x16 __attribute__((vector_size(64)));

constexpr int64_t kLanes = 64;  // partial sums of a reduction

[[gnu::always_inline]] inline f32x16 load16(const float* p) {
  f32x16 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

[[gnu::always_inline]] inline float tree_sum(f32x16 a, f32x16 b, f32x16 c, f32x16 d) {
  const f32x16 s = (a + b) + (c + d);
  float v[16];
  std::memcpy(v, &s, sizeof v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v[i] += v[i + width];
  }
  return v[0];
}

// Dot product of two float32 vectors; the elements past a multiple of 64 are summed in order behind the tree.
[[gnu::always_inline]] inline float dot(const float* a, const float* b, int64_t n) {
  f32x16 s0{}, s1{}, s2{}, s3{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    s0 += load16(a + i) * load16(b + i);
    s1 += load16(a + i + 16) * load16(b + i + 16);
    s2 += load16(a + i + 32) * load16(b + i + 32);
    s3 += load16(a + i + 48) * load16(b + i + 48);
  }
  float sum = tree_sum(s0, s1, s2, s3);
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace di
