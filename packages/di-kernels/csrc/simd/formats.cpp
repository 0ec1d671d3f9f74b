#include "simd/formats.hpp"

#include "simd/groups.hpp"

namespace di::formats_simd::DI_ISA {
namespace {

using namespace simd::DI_ISA;

template <class T>
void encode_fp8_row(const T* x, int64_t dim, uint8_t* codes, uint8_t* scales) {
  for (int64_t i = 0; i < dim; i += 32) {
    scales[i / 32] = encode_fp8(load_row(x + i, Whole{}), load_row(x + i + 16, Whole{}), codes + i);
  }
}

template <class T>
void encode_mxfp4_row(const T* x, int64_t dim, uint8_t* codes, uint8_t* scales) {
  for (int64_t i = 0; i < dim; i += 32) {
    scales[i / 32] = encode_mxfp4(load_row(x + i, Whole{}), load_row(x + i + 16, Whole{}), codes + i / 2);
  }
}

template <class T>
void encode_fp4_row(const T* x, int64_t dim, uint8_t* codes, uint8_t* scales) {
  for (int64_t i = 0; i < dim; i += 16) {
    scales[i / 16] = encode_fp4(load_row(x + i, Whole{}), codes + i / 2);
  }
}

template <class T>
void decode_fp8_row(const uint8_t* codes, const uint8_t* scales, int64_t dim, T* x) {
  for (int64_t i = 0; i < dim; i += 16) {
    store_row(x + i, from_e4m3(load_codes(codes + i)) * power_of_byte(scales[i / 32]), Whole{});
  }
}

template <class T>
void decode_mxfp4_row(const uint8_t* codes, const uint8_t* scales, int64_t dim, T* x) {
  for (int64_t i = 0; i < dim; i += 16) {
    store_row(x + i, from_e2m1(load_nibbles(codes + i / 2)) * power_of_byte(scales[i / 32]), Whole{});
  }
}

template <class T>
void decode_fp4_row(const uint8_t* codes, const uint8_t* scales, int64_t dim, T* x) {
  for (int64_t i = 0; i < dim; i += 16) {
    const f32x16 scale = from_e4m3(u32x16{} + scales[i / 16]);
    store_row(x + i, from_e2m1(load_nibbles(codes + i / 2)) * scale, Whole{});
  }
}

template <class T>
void round_trip_fp8_row(const T* x, int64_t dim, T* y) {
  for (int64_t i = 0; i < dim; i += 32) {
    f32x16 a = load_row(x + i, Whole{}), b = load_row(x + i + 16, Whole{});
    round_trip_fp8(a, b);
    store_exact(y + i, a);
    store_exact(y + i + 16, b);
  }
}

template <class T>
constexpr Loops<T> loops = {
    .encode = {encode_fp8_row<T>, encode_fp4_row<T>, encode_mxfp4_row<T>},
    .decode = {decode_fp8_row<T>, decode_fp4_row<T>, decode_mxfp4_row<T>},
    .round_trip_fp8 = round_trip_fp8_row<T>,
};

}  // namespace

const Table table = {.f32 = loops<float>, .b16 = loops<bf16>};

}  // namespace di::formats_simd::DI_ISA
