#include "cpu/weight.hpp"

#include "cpu/formats.hpp"
#include "cpu/reduce.hpp"

namespace di {
namespace {

template <class T>
inline void widen_unaligned(const uint8_t* row, int64_t k, float* out) {
  for (int64_t i = 0; i < k; ++i) out[i] = to_float(load_unaligned<T>(row, i));
}

}  // namespace

DI_MULTIVERSION
void decode_rows(const Weight& weight, int64_t begin, int64_t count, float* out) {
  for (int64_t j = 0; j < count; ++j) {
    const int64_t n = begin + j;
    const uint8_t* row = weight.data + n * weight.row_bytes;
    float* target = out + j * weight.k;
    switch (weight.format) {
      case WeightFormat::float32:
        widen_unaligned<float>(row, weight.k, target);
        break;
      case WeightFormat::bfloat16:
        widen_unaligned<bf16>(row, weight.k, target);
        break;
      case WeightFormat::fp8:
        decode_groups(GroupFormat::fp8, row, weight.scale + n / 32 * weight.scale_row_bytes, weight.k,
                      target);
        break;
      case WeightFormat::mxfp4:
        decode_groups(GroupFormat::mxfp4, row, weight.scale + n * weight.scale_row_bytes, weight.k, target);
        break;
    }
  }
}

}  // namespace di
