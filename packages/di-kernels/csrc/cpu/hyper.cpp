#include "cpu/hyper.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/linear.hpp"
#include "cpu/norm.hpp"
#include "parallel.hpp"

namespace di {
namespace {

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Softmax along each row of p [m, m], plus eps.
void softmax_rows(float* p, int64_t m, float eps) {
  for (int64_t i = 0; i < m; ++i) {
    float* row = p + i * m;
    const float largest = *std::max_element(row, row + m);
    float sum = 0.0f;
    for (int64_t j = 0; j < m; ++j) sum += row[j] = std::exp(row[j] - largest);
    for (int64_t j = 0; j < m; ++j) row[j] = row[j] / sum + eps;
  }
}

// Divides the m lines of p, of m elements each, by their sums plus eps; line i starts at i * step, its
// elements are `inner` apart.
void normalise(float* p, int64_t m, int64_t step, int64_t inner, float eps) {
  for (int64_t i = 0; i < m; ++i) {
    float* line = p + i * step;
    float sum = 0.0f;
    for (int64_t j = 0; j < m; ++j) sum += line[j * inner];
    for (int64_t j = 0; j < m; ++j) line[j * inner] /= sum + eps;
  }
}

void sinkhorn(float* p, int64_t m, float eps, int iterations) {
  softmax_rows(p, m, eps);
  normalise(p, m, 1, m, eps);
  for (int i = 1; i < iterations; ++i) {
    normalise(p, m, m, 1, eps);
    normalise(p, m, 1, m, eps);
  }
}

// sum (+)= factor * x
template <class T>
void add_scaled(const T* x, float factor, bool first, float* sum, int64_t n) {
  if (first) {
    for (int64_t i = 0; i < n; ++i) sum[i] = factor * to_float(x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) sum[i] += factor * to_float(x[i]);
  }
}

}  // namespace

template <class T>
void hyper_project(const T* stream, int64_t rows, const Weight& fn, float eps, float* z) {
  linear<T, float>(stream, rows, fn, false, z);
  parallel_for(rows, 4 * fn.k, [&](int64_t begin, int64_t end) {
    std::vector<float> trunk(static_cast<size_t>(fn.k));
    for (int64_t r = begin; r < end; ++r) {
      widen(stream + r * fn.k, fn.k, trunk.data());
      const float rstd = inverse_rms(trunk.data(), fn.k, eps);
      for (int64_t i = 0; i < fn.n; ++i) z[r * fn.n + i] *= rstd;
    }
  });
}

void hyper_coefficients(const float* z, int64_t rows, int64_t m, const HyperParameters& parameters,
                        HyperMixes out) {
  const auto affine = [&](int64_t row, int64_t column, int part) {
    const float value = z[row * m * (m + 2) + column] * load_unaligned<float>(parameters.scale, part);
    return value + load_unaligned<float>(parameters.base, column);
  };
  parallel_for(rows, 64 * m * m, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t s = 0; s < m; ++s) {
        out.pre[r * m + s] = sigmoid(affine(r, s, 0)) + parameters.hc_eps;
        out.post[r * m + s] = sigmoid(affine(r, m + s, 1)) * 2.0f;
      }
      float* comb = out.comb + r * m * m;
      for (int64_t i = 0; i < m * m; ++i) comb[i] = affine(r, 2 * m + i, 2);
      sinkhorn(comb, m, parameters.hc_eps, parameters.sinkhorn_iters);
    }
  });
}

template <class T>
void hyper_pre(const T* stream, const float* pre, T* y, int64_t rows, int64_t m, int64_t dim) {
  parallel_for(rows, m * dim, [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(dim));
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t s = 0; s < m; ++s) {
        add_scaled(stream + (r * m + s) * dim, pre[r * m + s], s == 0, sum.data(), dim);
      }
      narrow(sum.data(), dim, y + r * dim);
    }
  });
}

template <class T>
void hyper_post(const T* stream, const T* y, const float* post, const float* comb, T* out, int64_t rows,
                int64_t m, int64_t dim) {
  parallel_for(rows, m * m * dim, [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(dim));
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t j = 0; j < m; ++j) {
        add_scaled(y + r * dim, post[r * m + j], true, sum.data(), dim);
        for (int64_t i = 0; i < m; ++i) {
          add_scaled(stream + (r * m + i) * dim, comb[(r * m + i) * m + j], false, sum.data(), dim);
        }
        narrow(sum.data(), dim, out + (r * m + j) * dim);
      }
    }
  });
}

template <class T>
void stream_mean(const T* stream, T* y, int64_t rows, int64_t m, int64_t dim) {
  const float factor = 1.0f / static_cast<float>(m);
  parallel_for(rows, m * dim, [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(dim));
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t s = 0; s < m; ++s) add_scaled(stream + (r * m + s) * dim, 1.0f, s == 0, sum.data(), dim);
      for (int64_t i = 0; i < dim; ++i) y[r * dim + i] = from_float<T>(sum[i] * factor);
    }
  });
}

template void hyper_project<float>(const float*, int64_t, const Weight&, float, float*);
template void hyper_project<bf16>(const bf16*, int64_t, const Weight&, float, float*);
template void hyper_pre<float>(const float*, const float*, float*, int64_t, int64_t, int64_t);
template void hyper_pre<bf16>(const bf16*, const float*, bf16*, int64_t, int64_t, int64_t);
template void hyper_post<float>(const float*, const float*, const float*, const float*, float*, int64_t,
                                int64_t, int64_t);
template void hyper_post<bf16>(const bf16*, const bf16*, const float*, const float*, bf16*, int64_t, int64_t,
                               int64_t);
template void stream_mean<float>(const float*, float*, int64_t, int64_t, int64_t);
template void stream_mean<bf16>(const bf16*, bf16*, int64_t, int64_t, int64_t);

}  // namespace di
