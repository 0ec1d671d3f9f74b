#include "cpu/formats.hpp"

#include "parallel.hpp"
#include "simd/formats.hpp"

namespace di {

void decode_groups(GroupFormat format, const uint8_t* codes, const uint8_t* scales, int64_t dim, float* x) {
  formats_simd::active().f32.decode[static_cast<int>(format)](codes, scales, dim, x);
}

void round_trip_fp8(float* x, int64_t dim) { formats_simd::active().f32.round_trip_fp8(x, dim, x); }

template <class T>
void round_trip_fp8_rows(const T* x, int64_t rows, int64_t dim, T* y) {
  const auto loop = formats_simd::active().of<T>().round_trip_fp8;
  parallel_for(rows, 2 * dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) loop(x + r * dim, dim, y + r * dim);
  });
}

template <class T>
void encode(GroupFormat format, const T* x, int64_t rows, int64_t dim, uint8_t* codes, uint8_t* scales) {
  const int64_t code_stride = code_bytes(format, dim), scale_stride = dim / group_size(format);
  const auto loop = formats_simd::active().of<T>().encode[static_cast<int>(format)];
  parallel_for(rows, 2 * dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      loop(x + r * dim, dim, codes + r * code_stride, scales + r * scale_stride);
    }
  });
}

template <class T>
void decode(GroupFormat format, const uint8_t* codes, int64_t code_stride, const uint8_t* scales,
            int64_t scale_stride, int64_t rows, int64_t dim, T* x) {
  const auto loop = formats_simd::active().of<T>().decode[static_cast<int>(format)];
  parallel_for(rows, dim, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      loop(codes + r * code_stride, scales + r * scale_stride, dim, x + r * dim);
    }
  });
}

template void round_trip_fp8_rows<float>(const float*, int64_t, int64_t, float*);
template void round_trip_fp8_rows<bf16>(const bf16*, int64_t, int64_t, bf16*);
template void encode<float>(GroupFormat, const float*, int64_t, int64_t, uint8_t*, uint8_t*);
template void encode<bf16>(GroupFormat, const bf16*, int64_t, int64_t, uint8_t*, uint8_t*);
template void decode<float>(GroupFormat, const uint8_t*, int64_t, const uint8_t*, int64_t, int64_t, int64_t,
                            float*);
template void decode<bf16>(GroupFormat, const uint8_t*, int64_t, const uint8_t*, int64_t, int64_t, int64_t,
                           bf16*);

}  // namespace di
