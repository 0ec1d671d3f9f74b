#include "simd/sampling.hpp"

#include "simd/simd.hpp"

namespace di::sampling_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

typedef float f32x8 __attribute__((vector_size(32)));
typedef double f64x8 __attribute__((vector_size(64)));
typedef uint64_t u64x8 __attribute__((vector_size(64)));

constexpr float kInfinity = __builtin_inff();

#define DI_LAMBDA __attribute__((always_inline))

// Bit l is set where lane l of the mask is.
DI_INLINE uint32_t bits_of(i32x16 mask) {
#if defined(DI_AVX512)
  return _mm512_movepi32_mask((__m512i)mask);
#elif defined(DI_ISA_avx2)
  __m256 half[2];
  std::memcpy(half, &mask, sizeof mask);
  return static_cast<uint32_t>(_mm256_movemask_ps(half[0]) | _mm256_movemask_ps(half[1]) << 8);
#else
  uint32_t out = 0;
  for (int l = 0; l < 16; ++l) out |= static_cast<uint32_t>(mask[l] & 1) << l;
  return out;
#endif
}

// All ones in the lanes whose bit is set.
DI_INLINE i32x16 mask_of(uint32_t bits) {
#if defined(DI_AVX512)
  return (i32x16)_mm512_movm_epi32(static_cast<__mmask16>(bits));
#else
  constexpr i32x16 lane = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  return (static_cast<int32_t>(bits) & lane) != 0;
#endif
}

constexpr i32x16 kLane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

template <class V, class T>
DI_INLINE V load_part(const T* p, int64_t count, V padding) {
  std::memcpy(&padding, p, static_cast<size_t>(count) * sizeof(T));
  return padding;
}

// body(i, x[i..i+15]) for all of n elements; those behind the end are padding.
template <class Body>
DI_INLINE void for_vectors(const float* x, int64_t n, float padding, const Body& body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) body(i, load<f32x16>(x + i));
  if (i < n) body(i, load_part(x + i, n - i, splat(padding)));
}

// The same with as many vectors at once as body's second argument holds: four, or one.
template <int N>
struct Group {
  f32x16 v[N];
};
template <class Body>
DI_INLINE void for_groups(const float* x, int64_t n, float padding, const Body& body) {
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const float* p = x + i;
    body(i, Group<4>{load<f32x16>(p), load<f32x16>(p + 16), load<f32x16>(p + 32), load<f32x16>(p + 48)});
  }
  for (; i < n; i += 16) body(i, Group<1>{load_part(x + i, n - i < 16 ? n - i : 16, splat(padding))});
}

DI_INLINE float largest(f32x16 v) {
  float lane[16];
  store(lane, v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] = lane[i + width] > lane[i] ? lane[i + width] : lane[i];
  }
  return lane[0];
}

DI_INLINE bool has_nan(const float* x, int64_t n) {
  i32x16 nan = {};
  for_vectors(x, n, 0.0f, [&](int64_t, f32x16 v) DI_LAMBDA { nan |= v != v; });
  return bits_of(nan) != 0;
}

// First of `count` elements that equals `value`, which is among them.
DI_INLINE int64_t find(const float* x, int64_t count, float value) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const uint32_t found = bits_of(load<f32x16>(x + i) == value);
    if (found != 0) return i + __builtin_ctz(found);
  }
  while (i + 1 < count && x[i] != value) ++i;
  return i;
}

Peak peak(const float* x, int64_t n) {
  constexpr int64_t kPiece = 2048;
  float top = -kInfinity;
  int64_t piece = 0;
  f32x16 zeros[4] = {};  // stay 0 for as long as everything is finite: 0 times anything else is NaN
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t end = begin + kPiece < n ? begin + kPiece : n;
    f32x16 best[4] = {splat(x[begin]), splat(x[begin]), splat(x[begin]), splat(x[begin])};
    const auto look = [&](int k, f32x16 v) DI_LAMBDA {
      best[k] = max(best[k], v);
      zeros[k] = fma(v, f32x16{}, zeros[k]);
    };
    int64_t i = begin;
    for (; i + 64 <= end; i += 64) {
      for (int k = 0; k < 4; ++k) look(k, load<f32x16>(x + i + 16 * k));
    }
    for (; i < end; i += 16) {
      const int64_t count = end - i < 16 ? end - i : 16;
      look(0, load_part(x + i, count, splat(x[begin])));
    }
    const float here = largest(max(max(best[0], best[1]), max(best[2], best[3])));
    if (here > top) {
      top = here;
      piece = begin;
    }
  }
  const f32x16 zero = (zeros[0] + zeros[1]) + (zeros[2] + zeros[3]);
  const bool finite = bits_of(zero == f32x16{}) == 0xffff;
  if (!finite && (top == -kInfinity || top == kInfinity || has_nan(x, n))) {
    return {__builtin_nanf(""), -1, false};
  }
  const int64_t count = n - piece < kPiece ? n - piece : kPiece;
  return {top, piece + find(x + piece, count, top), finite};
}

// Distance from the largest logit over the temperature.
DI_INLINE f32x16 distance(f32x16 x, float top, float scale) { return max((x - top) * scale, splat(kLowest)); }

DI_INLINE u64x8 pair_sums(u32x16 v) { return ((u64x8)v & 0xffffffffu) + ((u64x8)v >> 32); }

DI_INLINE uint64_t total(u64x8 v) {
  return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

void weigh(const float* x, int64_t n, float top, float scale, uint32_t* weights, uint64_t* sums) {
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    u64x8 sum = {};
    for_groups(x + begin, n - begin < kBlock ? n - begin : kBlock, -kInfinity,
               [&](int64_t i, auto group) DI_LAMBDA {
                 for (f32x16& v : group.v) v = distance(v, top, scale);
                 exp(group.v);
                 uint32_t* out = weights + begin + i;
                 for (const f32x16& e : group.v) {
                   const u32x16 w = __builtin_convertvector(e * 0x1p31f, u32x16);
                   store(out, w);
                   sum += pair_sums(w);
                   out += 16;
                 }
               });
    sums[begin / kBlock] = total(sum);
  }
}

DI_INLINE i32x16 bucket_of(f32x16 z) { return __builtin_convertvector(z * -kBucketsPerUnit, i32x16); }

// Calls body(c, bucket) for the columns of the buckets first..end-1, in order.
template <class Body>
DI_INLINE void for_members(const float* x, int64_t n, float top, float scale, int first, int end,
                           const Body& body) {
  for_vectors(x, n, -kInfinity, [&](int64_t i, f32x16 v) DI_LAMBDA {
    const i32x16 found = bucket_of(distance(v, top, scale));
    uint32_t inside = bits_of((found >= first) & (found < end));
    if (inside == 0) return;
    int32_t bucket[16];
    store(bucket, found);
    for (; inside != 0; inside &= inside - 1) {
      const int lane = __builtin_ctz(inside);
      body(i + lane, bucket[lane]);
    }
  });
}

void count(const float* x, const uint32_t* weights, int64_t n, float top, float scale, int first, int end,
           Bucket* buckets) {
  Bucket all[2][kBuckets];  // two tables, so that adds to one bucket wait less for each other
  for (auto& table : all) std::memset(table + first, 0, static_cast<size_t>(end - first) * sizeof(Bucket));
  for_members(x, n, top, scale, first, end, [&](int64_t c, int32_t bucket) DI_LAMBDA {
    all[c % 2][bucket].mass += weights[c];
    all[c % 2][bucket].count += 1;
  });
  for (int b = first; b < end; ++b) {
    buckets[b] = {all[0][b].mass + all[1][b].mass, all[0][b].count + all[1][b].count};
  }
}

int64_t members(const float* x, int64_t n, float top, float scale, int bucket, int32_t* columns) {
  int64_t found = 0;
  for_members(x, n, top, scale, bucket, bucket + 1,
              [&](int64_t c, int32_t) DI_LAMBDA { columns[found++] = static_cast<int32_t>(c); });
  return found;
}

void keep(const float* x, int64_t n, Cut cut, uint32_t* weights, uint64_t* sums) {
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    u64x8 sum = {};
    for_vectors(
        x + begin, n - begin < kBlock ? n - begin : kBlock, -kInfinity, [&](int64_t i, f32x16 v) DI_LAMBDA {
          const i32x16 before = kLane + static_cast<int32_t>(begin + i) <= cut.column;
          const u32x16 w = load<u32x16>(weights + begin + i);
          const i32x16 kept = ((v > cut.logit) | ((v == cut.logit) & before)) & (w >= cut.least_weight);
          store(weights + begin + i, w & (u32x16)kept);
          sum += pair_sums(w & (u32x16)kept);
        });
    sums[begin / kBlock] = total(sum);
  }
}

DI_INLINE void halves(f32x16 v, f64x8* low, f64x8* high) {
  f32x8 half[2];
  std::memcpy(half, &v, sizeof v);
  *low = __builtin_convertvector(half[0], f64x8);
  *high = __builtin_convertvector(half[1], f64x8);
}

double sum_exp(const float* x, int64_t n, float top) {
  f64x8 low = {}, high = {};  // sixteen partial sums: of columns c, c + 16, c + 32, ...
  for_groups(x, n, -kInfinity, [&](int64_t, auto group) DI_LAMBDA {
    for (f32x16& v : group.v) v = v - top;
    exp(group.v);
    for (const f32x16& e : group.v) {
      f64x8 half[2];
      halves(e, &half[0], &half[1]);
      low += half[0];
      high += half[1];
    }
  });
  double lane[8];
  store(lane, low + high);
  for (int width = 4; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0] == lane[0] ? lane[0] : __builtin_nan("");  // one NaN, whichever a sum kept
}

void log_softmax(const float* x, int64_t n, float top, double log_sum, float* out) {
  const double peak = top;
  for_vectors(x, n, 0.0f, [&](int64_t i, f32x16 v) DI_LAMBDA {
    f64x8 low, high;
    halves(v, &low, &high);
    const f32x8 y[2] = {__builtin_convertvector((low - peak) - log_sum, f32x8),
                        __builtin_convertvector((high - peak) - log_sum, f32x8)};
    std::memcpy(out + i, y, static_cast<size_t>(n - i < 16 ? n - i : 16) * sizeof(float));
  });
}

// NaN ranks as -inf.
DI_INLINE f32x16 ranked(f32x16 v) { return select(v == v, v, splat(-kInfinity)); }

int64_t rank(const float* x, int64_t n, int64_t column) {
  const float own = x[column] == x[column] ? x[column] : -kInfinity;
  i32x16 before = {};  // minus the number of columns
  for_vectors(x, n, -kInfinity, [&](int64_t i, f32x16 v) DI_LAMBDA {
    const i32x16 lower = kLane + static_cast<int32_t>(i) < static_cast<int32_t>(column);
    before += (ranked(v) > own) | ((ranked(v) == own) & lower);
  });
  int64_t sum = 0;
  for (int l = 0; l < 16; ++l) sum -= before[l];
  return sum;
}

// A line that is only written waits for memory all the same.
void apply_bitmask(float* x, int64_t n, const uint32_t* words) {
  constexpr int64_t kAhead = 1024;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __builtin_prefetch(x + i + kAhead);  // never faults, also not behind the end
    const uint32_t allowed = words[i / 32] >> (i % 32) & 0xffff;
#if defined(DI_AVX512)
    _mm512_mask_storeu_ps(x + i, static_cast<__mmask16>(~allowed), _mm512_set1_ps(-kInfinity));
#else
    store(x + i, select(mask_of(allowed), load<f32x16>(x + i), splat(-kInfinity)));
#endif
  }
  for (; i < n; ++i) {
    if ((words[i / 32] >> (i % 32) & 1) == 0) x[i] = -kInfinity;
  }
}

}  // namespace

const Table table = {.peak = peak,
                     .weigh = weigh,
                     .count = count,
                     .members = members,
                     .keep = keep,
                     .sum_exp = sum_exp,
                     .log_softmax = log_softmax,
                     .rank = rank,
                     .apply_bitmask = apply_bitmask};

}  // namespace di::sampling_simd::DI_ISA
