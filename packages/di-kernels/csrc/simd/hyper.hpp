// Loops of the hyper family over one row (a block of rows: project); the sums of cpu/hyper.hpp.
#pragma once

#include "isa.hpp"
#include "numeric.hpp"
#include "simd/by_type.hpp"

namespace di::hyper_simd {

constexpr int64_t kProjectRows = 48;  // rows that meet columns of `fn` while these are in the second cache

template <class T>
struct Loops {
  // z[r * z_stride + j] = x[r] . row j of fn, for j < count; rows of x have k values. `sums` is room for 16
  // numbers of each z.
  void (*project)(const T* x, int64_t rows, int64_t k, const uint8_t* fn, int64_t fn_row_bytes, int64_t count,
                  float* sums, float* z, int64_t z_stride);
  void (*pre)(const T* stream, const float* pre, int64_t m, int64_t dim, T* y);
  void (*post)(const T* stream, const T* y, const float* post, const float* comb, int64_t m, int64_t dim,
               T* out);
  // y[i] = round(shared + routed[0] + ..), routed [slots, dim].
  void (*combine)(const T* shared, const T* routed, int64_t slots, int64_t dim, T* y);
  // post() with the y of combine().
  void (*combine_post)(const T* stream, const T* shared, const T* routed, int64_t slots, const float* post,
                       const float* comb, int64_t m, int64_t dim, T* out);
  void (*mean)(const T* stream, int64_t m, int64_t dim, T* y);
};

struct Coefficients {
  const uint8_t *base, *scale;
  float hc_eps;
  int sinkhorn_iters;
};

struct Table : ByType<Loops> {
  // pre, post [m], comb [m, m] of z [m(m+2)] times rstd.
  void (*coefficients)(const float* z, float rstd, int64_t m, const Coefficients& parameters, float* pre,
                       float* post, float* comb);
};
DI_SIMD_FAMILY

}  // namespace di::hyper_simd
