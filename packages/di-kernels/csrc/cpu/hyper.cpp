#include "cpu/hyper.hpp"

#include <algorithm>
#include <vector>

#include "cpu/buffer.hpp"
#include "parallel.hpp"
#include "simd/hyper.hpp"
#include "simd/norm.hpp"

namespace di {
namespace {

using hyper_simd::kProjectRows;

constexpr int64_t kFewRows = 6;      // for each thread
constexpr int64_t kReadWeight = 16;  // operations that a float32 weight takes as long as to come from memory

// What is computed of one trunk: `z` and `rstd` are filled, then, by the thread that found rstd, `beside(r)`
// is called for every row r, while other threads may still be at z.
template <class T, class Beside>
void project_stream(const T* stream, int64_t rows, const Weight& fn, float eps, float* z, float* rstd,
                    const Beside& beside) {
  const auto& loops = hyper_simd::active().of<T>();
  const auto inverse_rms = norm_simd::active().of<T>().inverse_rms;
  const auto project = [&](int64_t begin, int64_t end, int64_t first, int64_t last) {
    thread_local Buffer buffer;
    auto* sums = buffer.reserve<float>(std::min(end - begin, kProjectRows) * (last - first) * 16);
    for (int64_t r = begin; r < end; r += kProjectRows) {
      const int64_t count = std::min(end - r, kProjectRows);
      loops.project(stream + r * fn.k, count, fn.k, fn.data + first * fn.row_bytes, fn.row_bytes,
                    last - first, sums, z + r * fn.n + first, fn.n);
      for (int64_t i = r; i < r + count && first == 0; ++i) {
        rstd[i] = inverse_rms(stream + i * fn.k, fn.k, eps);
        beside(i);
      }
    }
  };
  // Few rows: threads share the rows of fn, which is what costs; many: every thread has rows of its own.
  if (rows <= kFewRows * num_threads()) {
    const int64_t cost = (2 * rows + kReadWeight) * fn.k;
    parallel_for(fn.n, cost, [&](int64_t first, int64_t last) { project(0, rows, first, last); });
  } else {
    parallel_for(rows, 2 * fn.k * fn.n, [&](int64_t begin, int64_t end) { project(begin, end, 0, fn.n); });
  }
}

template <class T>
void collapse_row(const T* stream, const float* pre, const NormWeight& norm, int64_t m, int64_t dim, T* x,
                  T* quantized) {
  hyper_simd::active().of<T>().pre(stream, pre, m, dim, x);
  norm_simd::active().of<T>().rms_norm(x, norm.weight, dim, norm.eps, x, quantized);
}

// Coefficients of z times rstd of its rows (null: of z).
void mixes_of(const float* z, const float* rstd, int64_t rows, int64_t m, const HyperParameters& parameters,
              HyperMixes out) {
  const auto loop = hyper_simd::active().coefficients;
  const hyper_simd::Coefficients constants{parameters.base, parameters.scale, parameters.hc_eps,
                                           parameters.sinkhorn_iters};
  const int64_t n = m * (m + 2);
  parallel_for(rows, 8 * m * m * parameters.sinkhorn_iters, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float factor = rstd == nullptr ? 1.0f : rstd[r];
      loop(z + r * n, factor, m, constants, out.pre + r * m, out.post + r * m, out.comb + r * m * m);
    }
  });
}

}  // namespace

template <class T>
void hyper_project(const T* stream, int64_t rows, const Weight& fn, float eps, float* z) {
  std::vector<float> rstd(static_cast<size_t>(rows));
  project_stream(stream, rows, fn, eps, z, rstd.data(), [](int64_t) {});
  for (int64_t i = 0; i < rows * fn.n; ++i) z[i] *= rstd[i / fn.n];
}

void hyper_coefficients(const float* z, int64_t rows, int64_t m, const HyperParameters& parameters,
                        HyperMixes out) {
  mixes_of(z, nullptr, rows, m, parameters, out);
}

template <class T>
void hyper_pre(const T* stream, const float* pre, T* y, int64_t rows, int64_t m, int64_t dim) {
  const auto loop = hyper_simd::active().of<T>().pre;
  parallel_for(rows, m * dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) loop(stream + r * m * dim, pre + r * m, m, dim, y + r * dim);
  });
}

template <class T>
void hyper_collapse(const T* stream, const float* pre, const NormWeight& norm, int64_t rows, int64_t m,
                    int64_t dim, T* x, T* quantized) {
  parallel_for(rows, (m + 2) * dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* second = quantized == nullptr ? nullptr : quantized + r * dim;
      collapse_row(stream + r * m * dim, pre + r * m, norm, m, dim, x + r * dim, second);
    }
  });
}

template <class T>
void hyper_enter(const T* stream, int64_t rows, int64_t m, int64_t dim, const Weight& fn, float eps,
                 const HyperParameters& parameters, const float* pre, const NormWeight& norm, float* scratch,
                 HyperMixes out, T* x, T* quantized) {
  float *z = scratch, *rstd = scratch + rows * m * (m + 2);
  project_stream(stream, rows, fn, eps, z, rstd, [&](int64_t r) {
    T* second = quantized == nullptr ? nullptr : quantized + r * dim;
    collapse_row(stream + r * m * dim, pre + r * m, norm, m, dim, x + r * dim, second);
  });
  mixes_of(z, rstd, rows, m, parameters, out);
}

template <class T>
void hyper_post(const T* stream, const T* y, const float* post, const float* comb, T* out, int64_t rows,
                int64_t m, int64_t dim) {
  const auto loop = hyper_simd::active().of<T>().post;
  parallel_for(rows, m * m * dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t trunk = r * m * dim;
      loop(stream + trunk, y + r * dim, post + r * m, comb + r * m * m, m, dim, out + trunk);
    }
  });
}

template <class T>
void hyper_post_combined(const T* stream, const T* shared, const T* routed, int64_t slots, const float* post,
                         const float* comb, T* out, int64_t rows, int64_t m, int64_t dim) {
  const auto loop = hyper_simd::active().of<T>().combine_post;
  parallel_for(rows, (m * m + slots) * dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t trunk = r * m * dim;
      loop(stream + trunk, shared + r * dim, routed + r * slots * dim, slots, post + r * m, comb + r * m * m,
           m, dim, out + trunk);
    }
  });
}

template <class T>
void stream_mean(const T* stream, T* y, int64_t rows, int64_t m, int64_t dim) {
  const auto loop = hyper_simd::active().of<T>().mean;
  parallel_for(rows, m * dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) loop(stream + r * m * dim, m, dim, y + r * dim);
  });
}

#define DI_INSTANTIATE(T)                                                                                   \
  template void hyper_project<T>(const T*, int64_t, const Weight&, float, float*);                          \
  template void hyper_pre<T>(const T*, const float*, T*, int64_t, int64_t, int64_t);                        \
  template void hyper_collapse<T>(const T*, const float*, const NormWeight&, int64_t, int64_t, int64_t, T*, \
                                  T*);                                                                      \
  template void hyper_enter<T>(const T*, int64_t, int64_t, int64_t, const Weight&, float,                   \
                               const HyperParameters&, const float*, const NormWeight&, float*, HyperMixes, \
                               T*, T*);                                                                     \
  template void hyper_post<T>(const T*, const T*, const float*, const float*, T*, int64_t, int64_t,         \
                              int64_t);                                                                     \
  template void hyper_post_combined<T>(const T*, const T*, const T*, int64_t, const float*, const float*,   \
                                       T*, int64_t, int64_t, int64_t);                                      \
  template void stream_mean<T>(const T*, T*, int64_t, int64_t, int64_t);
DI_INSTANTIATE(float)
DI_INSTANTIATE(bf16)
#undef DI_INSTANTIATE

}  // namespace di
