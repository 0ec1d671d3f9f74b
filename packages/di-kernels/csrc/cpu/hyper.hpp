// Hyper-connections (backbone specification, 3): m residual streams mixed by small matrices.
#pragma once

#include <cstdint>

#include "cpu/norm.hpp"
#include "cpu/weight.hpp"
#include "numeric.hpp"

namespace di {

// Parameters of the coefficients: base [m(m+2)] and scale [3], float32 at any address.
struct HyperParameters {
  const uint8_t* base;
  const uint8_t* scale;
  float hc_eps;
  int sinkhorn_iters;
};

// Where the coefficients go: pre, post [rows, m], comb [rows, m, m].
struct HyperMixes {
  float *pre, *post, *comb;
};

// z [rows, m(m+2)] = (fn . u) * rstd of the flattened trunk u (3.2); stream [rows, m, dim], fn [m(m+2),
// m*dim] float32. Products are summed by fused multiply-add in 16 partial sums of interleaved columns, then a
// tree; columns past a multiple of 32 follow in order. rstd is that of rms_norm().
template <class T>
void hyper_project(const T* stream, int64_t rows, const Weight& fn, float eps, float* z);

// Coefficients of z (3.2, 3.3).
void hyper_coefficients(const float* z, int64_t rows, int64_t m, const HyperParameters& parameters,
                        HyperMixes out);

// y [rows, dim]: round(sum over s of pre[s] * stream[s]), streams in order (3.4).
template <class T>
void hyper_pre(const T* stream, const float* pre, T* y, int64_t rows, int64_t m, int64_t dim);

// x [rows, dim] = rms_norm(hyper_pre(stream, pre)), in one pass; `quantized`, where not null, its MXFP8 round
// trip (dim is a multiple of 32 then).
template <class T>
void hyper_collapse(const T* stream, const float* pre, const NormWeight& norm, int64_t rows, int64_t m,
                    int64_t dim, T* x, T* quantized);

// What a sub-layer does with the trunk it finds, in two parallel loops: the coefficients of `stream`
// (hyper_project, hyper_coefficients) and hyper_collapse with the `pre` of the sub-layer before, which must
// not be out.pre. Scratch: m(m+2) + 1 floats for each row.
template <class T>
void hyper_enter(const T* stream, int64_t rows, int64_t m, int64_t dim, const Weight& fn, float eps,
                 const HyperParameters& parameters, const float* pre, const NormWeight& norm, float* scratch,
                 HyperMixes out, T* x, T* quantized);

// New trunk [rows, m, dim]: round(post[j]*y + sum over i of comb[i,j]*stream[i]), in that order (3.5). `out`
// does not overlap `stream`.
template <class T>
void hyper_post(const T* stream, const T* y, const float* post, const float* comb, T* out, int64_t rows,
                int64_t m, int64_t dim);

// hyper_post with y = combine(shared, routed) of route.hpp: routed [rows, slots, dim] is read once.
template <class T>
void hyper_post_combined(const T* stream, const T* shared, const T* routed, int64_t slots, const float* post,
                         const float* comb, T* out, int64_t rows, int64_t m, int64_t dim);

// y [rows, dim]: round((sum over s of stream[s]) * (1/m)), streams in order (8.1).
template <class T>
void stream_mean(const T* stream, T* y, int64_t rows, int64_t m, int64_t dim);

}  // namespace di
