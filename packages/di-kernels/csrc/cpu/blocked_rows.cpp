#include "cpu/blocked_rows.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/ceil_div.hpp"
#include "cpu/formats.hpp"
#include "parallel.hpp"
#include "simd/linear.hpp"
#include "simd/stored_linear.hpp"

namespace di {

using stored_linear_simd::kLaneBlocks;

namespace {

constexpr int64_t kScatteredRows = 16;  // put into blocks side by side

// `count` rows, `stride` apart, to the blocks of rows m.. of `rows`; what is behind their end is zero. Block
// by block: one row's blocks lie so far from each other that they would share few places of the first cache.
template <class T>
void scatter_rows(const T* x, int64_t stride, int64_t count, int64_t k, int64_t m, int64_t rows, T* out) {
  const int64_t whole = k / kBlock, rest = k % kBlock;
  out += m * kBlock;
  for (int64_t b = 0; b < whole; ++b, out += rows * kBlock) {
    for (int64_t r = 0; r < count; ++r) {
      std::memcpy(out + r * kBlock, x + r * stride + b * kBlock, kBlock * sizeof(T));
    }
  }
  for (int64_t r = 0; r < count && rest > 0; ++r) {
    T* end = std::copy_n(x + r * stride + whole * kBlock, rest, out + r * kBlock);
    std::fill_n(end, kBlock - rest, T{});
  }
}

}  // namespace

template <class T>
void put_rows(const T* x, int64_t stride, int64_t count, int64_t k, bool quantize, bool wide, int64_t m,
              int64_t rows, void* out) {
  const bool same_type = wide == (sizeof(T) == 4);
  thread_local Buffer quantized, converted;
  if (quantize) {
    T* values = same_type && rows == 1 ? static_cast<T*>(out) : quantized.reserve<T>(count * k);
    for (int64_t r = 0; r < count; ++r) round_trip_fp8_rows(x + r * stride, 1, k, values + r * k);
    if (values == out) return;  // whole blocks, in their places
    x = values;
    stride = k;
  }
  if (same_type) return scatter_rows(x, stride, count, k, m, rows, static_cast<T*>(out));
  if constexpr (sizeof(T) == 4) {
    bf16* values = converted.reserve<bf16>(count * k);
    for (int64_t r = 0; r < count; ++r) narrow(x + r * stride, k, values + r * k);
    scatter_rows(values, k, count, k, m, rows, static_cast<bf16*>(out));
  } else {
    float* values = converted.reserve<float>(count * k);
    for (int64_t r = 0; r < count; ++r) widen(x + r * stride, k, values + r * k);
    scatter_rows(values, k, count, k, m, rows, static_cast<float*>(out));
  }
}

int64_t lane_rows(const Weight& weight, bool wide) {
  return weight.packed || wide ? 0 : linear_simd::active().lane_rows;
}

int64_t lanes_size(int64_t k, int64_t rows) {
  return ceil_div(blocks_of(k), kLaneBlocks) * kLaneBlocks * rows * kBlock / 2;
}

void add_lanes(int64_t k, uint32_t* out, BlockedRows& x) {
  stored_linear_simd::active().lanes(static_cast<const uint16_t*>(x.data), x.rows, blocks_of(k), out);
  x.lanes = out;
}

template <class T>
BlockedRows block_rows(const T* x, int64_t stride, int64_t rows, const Weight& weight, bool quantize,
                       Buffer& buffer) {
  const int64_t k = weight.k;
  const bool wide = is_wide<T>(weight, quantize), same_type = !quantize && wide == (sizeof(T) == 4);
  const bool as_it_is = same_type && rows == 1 && k % kBlock == 0;
  const int64_t bytes = as_it_is ? 0 : rows * blocks_of(k) * kBlock * (wide ? 4 : 2);
  const int64_t lanes = rows <= lane_rows(weight, wide) ? lanes_size(k, rows) : 0;
  auto* out = buffer.reserve<uint8_t>(bytes + lanes * static_cast<int64_t>(sizeof(uint32_t)));
  const int64_t cost = (same_type ? kPerElement / 4 : kPerElement) * kScatteredRows * k;
  parallel_for(as_it_is ? 0 : ceil_div(rows, kScatteredRows), cost, [&](int64_t first, int64_t last) {
    for (int64_t m = first * kScatteredRows; m < std::min(last * kScatteredRows, rows); m += kScatteredRows) {
      const int64_t count = std::min(kScatteredRows, rows - m);
      put_rows(x + m * stride, stride, count, k, quantize, wide, m, rows, out);
    }
  });
  BlockedRows blocked{as_it_is ? static_cast<const void*>(x) : out, rows, wide};
  if (lanes > 0) add_lanes(k, reinterpret_cast<uint32_t*>(out + bytes), blocked);
  return blocked;
}

template void put_rows(const float*, int64_t, int64_t, int64_t, bool, bool, int64_t, int64_t, void*);
template void put_rows(const bf16*, int64_t, int64_t, int64_t, bool, bool, int64_t, int64_t, void*);
template BlockedRows block_rows(const float*, int64_t, int64_t, const Weight&, bool, Buffer&);
template BlockedRows block_rows(const bf16*, int64_t, int64_t, const Weight&, bool, Buffer&);

}  // namespace di
