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

// Sums of so many rows of x and of fn stay in registers, while so many columns of these rows of x lie in the
// first cache as float32.
#if defined(DI_AVX512)
constexpr int kInputs = 6, kOutputs = 4;
#else
constexpr int kInputs = 2, kOutputs = 3;
#endif
constexpr int64_t kColumns = 960;

// Float32 rows at any byte address.
struct Matrix {
  const uint8_t* data;
  int64_t row_bytes, rows;

  [[gnu::always_inline]] const uint8_t* at(int64_t row, int64_t column) const {
    return data + row * row_bytes + 4 * column;
  }
};

// sums[r][j] += x[r] . row j of fn, for R and J rows of `width` columns, in 16 partial sums; sums [R, n, 16].
template <int R, int J>
DI_INLINE void accumulate(const float* x, const uint8_t* fn, int64_t row_bytes, int64_t width, int64_t n,
                          float* sums) {
  f32x16 s[R][J];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) s[r][j] = load<f32x16>(sums + (r * n + j) * 16);
  }
  for (int64_t i = 0; i < width; i += 16) {
    f32x16 w[J];
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) w[j] = load_bytes(fn + j * row_bytes, i, Whole{});
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const f32x16 v = load<f32x16>(x + r * width + i);
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) s[r][j] = fma(w[j], v, s[r][j]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) store(sums + (r * n + j) * 16, s[r][j]);
  }
}

// The columns c.. of R rows and all of fn. Those of the rows behind, which are next, are asked for.
template <int R, class T>
void accumulate_columns(const T* x, int64_t k, const Matrix& fn, int64_t c, int64_t width, float* sums) {
  alignas(64) float columns[R * kColumns];
  for (int64_t r = 0; r < R; ++r) {
    const T* const row = x + r * k + c;
    for (int64_t i = 0; i < width; i += 32) {
      __builtin_prefetch(row + R * k + i, 0, 2);
      store(columns + r * width + i, load_row(row + i, Whole{}));
      store(columns + r * width + i + 16, load_row(row + i + 16, Whole{}));
    }
  }
  int64_t j = 0;
  for (; j + kOutputs <= fn.rows; j += kOutputs) {
    accumulate<R, kOutputs>(columns, fn.at(j, c), fn.row_bytes, width, fn.rows, sums + j * 16);
  }
  for (; j < fn.rows; ++j) {
    accumulate<R, 1>(columns, fn.at(j, c), fn.row_bytes, width, fn.rows, sums + j * 16);
  }
}

// Of at most R rows, as many as there are.
template <int R, class T>
void accumulate_rows(const T* x, int64_t rows, int64_t k, const Matrix& fn, int64_t c, int64_t width,
                     float* sums) {
  if constexpr (R > 1) {
    if (rows < R) return accumulate_rows<R - 1>(x, rows, k, fn, c, width, sums);
  }
  accumulate_columns<R>(x, k, fn, c, width, sums);
}

// Columns of fn meet all rows of x while they are near.
template <class T>
void project(const T* x, int64_t rows, int64_t k, const uint8_t* data, int64_t row_bytes, int64_t n,
             float* sums, float* z, int64_t z_stride) {
  const Matrix fn{data, row_bytes, n};
  const int64_t blocks = (rows + kInputs - 1) / kInputs, whole = k & ~int64_t{31};
  std::memset(sums, 0, static_cast<size_t>(rows * n) * 64);
  for (int64_t c = 0; c < whole; c += kColumns) {
    const int64_t width = whole - c < kColumns ? whole - c : kColumns;
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t begin = rows * b / blocks, end = rows * (b + 1) / blocks;
      accumulate_rows<kInputs>(x + begin * k, end - begin, k, fn, c, width, sums + begin * n * 16);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = tree_sum(load<f32x16>(sums + (r * n + j) * 16));
      for (int64_t i = whole; i < k; ++i) {
        const float w = load_bytes(fn.at(j, i), 0, Part{1})[0];
        sum = __builtin_fmaf(w, load_row(x + r * k + i, Part{1})[0], sum);
      }
      z[r * z_stride + j] = one_nan(sum);
    }
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

void coefficients(const float* z, float rstd, int64_t m, const Coefficients& parameters, float* pre,
                  float* post, float* comb) {
  const auto affine = [&](int64_t column, int part, auto lanes) __attribute__((always_inline)) {
    const float scale = load_bytes(parameters.scale, part, Part{1})[0];
    return load_row(z + column, lanes) * rstd * scale + load_bytes(parameters.base, column, lanes);
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
