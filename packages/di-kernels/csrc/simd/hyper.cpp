#include "simd/hyper.hpp"

#include "simd/rows.hpp"

namespace di::hyper_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

// The number of streams where it is known to the compiler, else 0.
template <int M>
struct Streams {
  static constexpr int value = M;
};

constexpr int64_t kGroup = 12;  // rows of fn that meet a chunk of the inputs while it is near

// sums[r] += the products of `width` columns of R rows x and one row of fn, in 64 partial sums. `next` is
// what will be read after fn.
template <int R>
DI_INLINE void accumulate(const float* x, int64_t x_stride, const uint8_t* fn, const uint8_t* next,
                          int64_t width, f32x16* sums) {
  f32x16 s[R][4];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int lane = 0; lane < 4; ++lane) s[r][lane] = sums[4 * r + lane];
  }
  for (int64_t i = 0; i < width; i += 64) {
#pragma GCC unroll 4
    for (int lane = 0; lane < 4; ++lane) {
      if constexpr (R > 2) __builtin_prefetch(next + 4 * i + 64 * lane, 0, 2);  // else the hardware keeps up
      const f32x16 w = load_bytes(fn, i + 16 * lane, Whole{});
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        s[r][lane] = fma(w, load<f32x16>(x + r * x_stride + i + 16 * lane), s[r][lane]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int lane = 0; lane < 4; ++lane) sums[4 * r + lane] = s[r][lane];
  }
}

template <int R, class T>
void project_rows(const T* x, int64_t k, const uint8_t* fn, int64_t fn_row_bytes, int64_t count, float* z,
                  int64_t z_stride) {
  constexpr int64_t kChunk = 8192 / R / 64 * 64;  // columns: 32 KiB of inputs as float32
  alignas(64) float columns[R * kChunk];
  alignas(64) f32x16 sums[kGroup * R * 4];
  for (int64_t first = 0; first < count; first += kGroup) {
    const int64_t group = count - first < kGroup ? count - first : kGroup;
    for (int64_t i = 0; i < group * R * 4; ++i) sums[i] = f32x16{};
    int64_t c = 0;
    for (int64_t width; c + 64 <= k; c += width) {
      width = k - c < kChunk ? (k - c) & ~int64_t{63} : kChunk;
      for (int64_t r = 0; r < R; ++r) {
        for (int64_t i = 0; i < width; i += 16) {
          store(columns + r * kChunk + i, load_row(x + r * k + c + i, Whole{}));
        }
      }
      for (int64_t j = 0; j < group; ++j) {
        const uint8_t* row = fn + (first + j) * fn_row_bytes + 4 * c;
        const uint8_t* next =
            j + 1 < group ? row + fn_row_bytes : fn + first * fn_row_bytes + 4 * (c + width);
        accumulate<R>(columns, kChunk, row, next, width, sums + j * R * 4);
      }
    }
    for (int64_t j = 0; j < group; ++j) {
      for (int64_t r = 0; r < R; ++r) {
        const f32x16* s = sums + (j * R + r) * 4;
        float sum = tree_sum((s[0] + s[1]) + (s[2] + s[3]));
        for (int64_t i = c; i < k; ++i) {
          const float w = load_bytes(fn + (first + j) * fn_row_bytes, i, Part{1})[0];
          sum = __builtin_fmaf(w, load_row(x + r * k + i, Part{1})[0], sum);
        }
        z[r * z_stride + first + j] = one_nan(sum);
      }
    }
  }
}

template <class T>
void project(const T* x, int64_t rows, int64_t k, const uint8_t* fn, int64_t fn_row_bytes, int64_t count,
             float* z, int64_t z_stride) {
  switch (rows) {
    case 1:
      return project_rows<1>(x, k, fn, fn_row_bytes, count, z, z_stride);
    case 2:
      return project_rows<2>(x, k, fn, fn_row_bytes, count, z, z_stride);
    case 3:
      return project_rows<3>(x, k, fn, fn_row_bytes, count, z, z_stride);
    case 4:
      return project_rows<4>(x, k, fn, fn_row_bytes, count, z, z_stride);
    case 5:
      return project_rows<5>(x, k, fn, fn_row_bytes, count, z, z_stride);
    default:
      return project_rows<6>(x, k, fn, fn_row_bytes, count, z, z_stride);
  }
}

template <class T>
void pre(const T* stream, const float* factor, int64_t m, int64_t dim, T* y) {
  by_16(dim, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
    f32x16 sum = factor[0] * load_row(stream + i, lanes);
    for (int64_t s = 1; s < m; ++s) sum += factor[s] * load_row(stream + s * dim + i, lanes);
    store_row(y + i, sum, lanes);
  });
}

template <class T>
void mean(const T* stream, int64_t m, int64_t dim, T* y) {
  const float factor = 1.0f / static_cast<float>(m);
  by_16(dim, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
    f32x16 sum = load_row(stream + i, lanes);
    for (int64_t s = 1; s < m; ++s) sum += load_row(stream + s * dim + i, lanes);
    store_row(y + i, sum * factor, lanes);
  });
}

// The 16 columns from i on of every stream; M streams, or `m` where M is 0.
template <int M, class T, class Lanes>
DI_INLINE void post_columns(const T* stream, int64_t i, f32x16 y, const float* post, const float* comb,
                            int64_t m, int64_t dim, T* out, Lanes lanes) {
  if constexpr (M > 0) {
    f32x16 source[M];
#pragma GCC unroll 4
    for (int s = 0; s < M; ++s) source[s] = load_row(stream + s * dim + i, lanes);
#pragma GCC unroll 4
    for (int j = 0; j < M; ++j) {
      f32x16 sum = post[j] * y;
#pragma GCC unroll 4
      for (int s = 0; s < M; ++s) sum += comb[s * M + j] * source[s];
      store_row(out + j * dim + i, sum, lanes);
    }
  } else {
    for (int64_t j = 0; j < m; ++j) {
      f32x16 sum = post[j] * y;
      for (int64_t s = 0; s < m; ++s) sum += comb[s * m + j] * load_row(stream + s * dim + i, lanes);
      store_row(out + j * dim + i, sum, lanes);
    }
  }
}

template <class T>
void post(const T* stream, const T* y, const float* factor, const float* comb, int64_t m, int64_t dim,
          T* out) {
  const auto columns = [&](auto streams) __attribute__((always_inline)) {
    by_16(dim, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
      const f32x16 added = load_row(y + i, lanes);
      post_columns<streams.value>(stream, i, added, factor, comb, m, dim, out, lanes);
    });
  };
  m == 4 ? columns(Streams<4>{}) : columns(Streams<0>{});
}

template <class T, class Lanes>
DI_INLINE f32x16 combined(const T* shared, const T* routed, int64_t slots, int64_t dim, int64_t i,
                          Lanes lanes) {
  f32x16 sum = load_row(shared + i, lanes);
  for (int64_t s = 0; s < slots; ++s) sum += load_row(routed + s * dim + i, lanes);
  return sum;
}

template <class T>
void combine(const T* shared, const T* routed, int64_t slots, int64_t dim, T* y) {
  by_16(dim, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
    store_row(y + i, combined(shared, routed, slots, dim, i, lanes), lanes);
  });
}

template <class T>
void combine_post(const T* stream, const T* shared, const T* routed, int64_t slots, const float* factor,
                  const float* comb, int64_t m, int64_t dim, T* out) {
  const auto columns = [&](auto streams) __attribute__((always_inline)) {
    by_16(dim, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
      const f32x16 y = rounded<T>(combined(shared, routed, slots, dim, i, lanes));
      post_columns<streams.value>(stream, i, y, factor, comb, m, dim, out, lanes);
    });
  };
  m == 4 ? columns(Streams<4>{}) : columns(Streams<0>{});
}

// Element j of every row of a 4x4 matrix at all places of that row; row i at all rows.
template <int J>
DI_INLINE f32x16 column_of_rows(f32x16 p) {
  return __builtin_shufflevector(p, p, J, J, J, J, 4 + J, 4 + J, 4 + J, 4 + J, 8 + J, 8 + J, 8 + J, 8 + J,
                                 12 + J, 12 + J, 12 + J, 12 + J);
}
template <int I>
DI_INLINE f32x16 row_of_columns(f32x16 p) {
  constexpr int k = 4 * I;
  return __builtin_shufflevector(p, p, k, k + 1, k + 2, k + 3, k, k + 1, k + 2, k + 3, k, k + 1, k + 2, k + 3,
                                 k, k + 1, k + 2, k + 3);
}

DI_INLINE f32x16 row_sums(f32x16 p) {
  return ((column_of_rows<0>(p) + column_of_rows<1>(p)) + column_of_rows<2>(p)) + column_of_rows<3>(p);
}
DI_INLINE f32x16 column_sums(f32x16 p) {
  return ((row_of_columns<0>(p) + row_of_columns<1>(p)) + row_of_columns<2>(p)) + row_of_columns<3>(p);
}

// Sinkhorn of a 4x4 matrix in registers.
void sinkhorn_4(float* matrix, float eps, int iterations) {
  f32x16 p = load<f32x16>(matrix);
  const f32x16 largest =
      max(max(max(column_of_rows<0>(p), column_of_rows<1>(p)), column_of_rows<2>(p)), column_of_rows<3>(p));
  const f32x16 e = exp(p - largest);
  p = e / row_sums(e) + eps;
  p /= column_sums(p) + eps;
  for (int i = 1; i < iterations; ++i) {
    p /= row_sums(p) + eps;
    p /= column_sums(p) + eps;
  }
  store(matrix, one_nan(p));
}

// Divides the m lines of p, of m elements each, by their sums plus eps; line i starts at i * step, its
// elements are `inner` apart.
DI_INLINE void normalise(float* p, int64_t m, int64_t step, int64_t inner, float eps) {
  for (int64_t i = 0; i < m; ++i) {
    float* line = p + i * step;
    float sum = 0.0f;
    for (int64_t j = 0; j < m; ++j) sum += line[j * inner];
    for (int64_t j = 0; j < m; ++j) line[j * inner] /= sum + eps;
  }
}

// The same for m x m, in the same order.
void sinkhorn(float* p, int64_t m, float eps, int iterations) {
  for (int64_t i = 0; i < m; ++i) {
    float* row = p + i * m;
    float largest = row[0];
    for (int64_t j = 1; j < m; ++j) largest = row[j] > largest ? row[j] : largest;
    by_16(m, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
      store_row(row + j, exp(load_row(row + j, lanes) - largest), lanes);
    });
    float sum = 0.0f;
    for (int64_t j = 0; j < m; ++j) sum += row[j];
    for (int64_t j = 0; j < m; ++j) row[j] = row[j] / sum + eps;
  }
  normalise(p, m, 1, m, eps);
  for (int i = 1; i < iterations; ++i) {
    normalise(p, m, m, 1, eps);
    normalise(p, m, 1, m, eps);
  }
  for (int64_t i = 0; i < m * m; ++i) p[i] = one_nan(p[i]);
}

void coefficients(const float* z, int64_t m, const Coefficients& parameters, float* pre, float* post,
                  float* comb) {
  const auto affine = [&](int64_t column, int part, auto lanes) __attribute__((always_inline)) {
    const float scale = load_bytes(parameters.scale, part, Part{1})[0];
    return load_row(z + column, lanes) * scale + load_bytes(parameters.base, column, lanes);
  };
  by_16(m, [&](int64_t s, auto lanes) __attribute__((always_inline)) {
    store_row(pre + s, sigmoid(affine(s, 0, lanes)) + parameters.hc_eps, lanes);
    store_row(post + s, sigmoid(affine(m + s, 1, lanes)) * 2.0f, lanes);
  });
  by_16(m * m, [&](int64_t i, auto lanes) __attribute__((always_inline)) {
    store_row(comb + i, affine(2 * m + i, 2, lanes), lanes);
  });
  if (m == 4) {
    sinkhorn_4(comb, parameters.hc_eps, parameters.sinkhorn_iters);
  } else {
    sinkhorn(comb, m, parameters.hc_eps, parameters.sinkhorn_iters);
  }
}

template <class T>
constexpr Loops<T> loops = {.project = project<T>,
                            .pre = pre<T>,
                            .post = post<T>,
                            .combine = combine<T>,
                            .combine_post = combine_post<T>,
                            .mean = mean<T>};

}  // namespace

const Table table = {{.f32 = loops<float>, .b16 = loops<bf16>}, coefficients};

}  // namespace di::hyper_simd::DI_ISA
