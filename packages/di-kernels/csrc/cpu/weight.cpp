#include "cpu/weight.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/formats.hpp"
#include "parallel.hpp"
#include "simd/pack.hpp"

namespace di {
namespace {

const uint8_t* group_of_row(const Weight& weight, int64_t n) {
  return weight.data + n / kGroupRows * group_bytes(weight.format, weight.k);
}

// Codes or values, and scale bytes, of one row of a packed weight as the checkpoint stores them.
void unpack_row(const Weight& weight, int64_t n, uint8_t* row, uint8_t* scale) {
  const int64_t words = blocks_of(weight.k) * words_of_block(weight.format);
  const int64_t row_bytes = weight.format == WeightFormat::float32    ? weight.k * 4
                            : weight.format == WeightFormat::bfloat16 ? weight.k * 2
                            : weight.format == WeightFormat::fp8      ? weight.k
                                                                      : weight.k / 2;
  const uint8_t* group = group_of_row(weight, n);
  const uint8_t* first = group + scale_bytes(weight.format, weight.k);
  for (int64_t w = 0; w < words; ++w) {
    auto word = load_unaligned<uint32_t>(first, w * kGroupRows + n % kGroupRows);
    if (weight.format == WeightFormat::fp8 || weight.format == WeightFormat::mxfp4) {
      const uint32_t crossed = (word ^ (word >> 8)) & 0x0000ff00u;
      word ^= crossed ^ (crossed << 8);
    }
    if (weight.format == WeightFormat::mxfp4) {
      const uint32_t crossed = (word ^ (word >> 4)) & 0x00f000f0u;
      word ^= crossed ^ (crossed << 4);
    }
    const int64_t left = row_bytes - 4 * w;
    if (left > 0) std::memcpy(row + 4 * w, &word, static_cast<size_t>(std::min<int64_t>(left, 4)));
  }
  const int64_t stride = block_scales(weight.format);
  for (int64_t b = 0; stride > 0 && b < blocks_of(weight.k); ++b) {
    scale[b] = group[b * stride + (stride > 1 ? n % kGroupRows : 0)];
  }
}

// One row as stored to float32.
void decode_row(WeightFormat format, const uint8_t* row, const uint8_t* scale, int64_t k, float* out) {
  switch (format) {
    case WeightFormat::float32:
      std::memcpy(out, row, static_cast<size_t>(k) * sizeof(float));
      break;
    case WeightFormat::bfloat16:
      for (int64_t i = 0; i < k; ++i) out[i] = to_float(load_unaligned<bf16>(row, i));
      break;
    case WeightFormat::fp8:
      decode_groups(GroupFormat::fp8, row, scale, k, out);
      break;
    case WeightFormat::mxfp4:
      decode_groups(GroupFormat::mxfp4, row, scale, k, out);
      break;
  }
}

}  // namespace

void decode_rows(const Weight& weight, int64_t begin, int64_t count, float* out) {
  std::vector<uint8_t> row, scale;
  if (weight.packed) {
    row.resize(static_cast<size_t>(weight.k) * 4);
    scale.resize(static_cast<size_t>(blocks_of(weight.k)));
  }
  for (int64_t n = begin; n < begin + count; ++n, out += weight.k) {
    if (weight.packed) {
      unpack_row(weight, n, row.data(), scale.data());
      decode_row(weight.format, row.data(), scale.data(), weight.k, out);
    } else {
      const int64_t scale_row = weight.format == WeightFormat::fp8 ? n / 32 : n;
      const uint8_t* scales =
          weight.scale == nullptr ? nullptr : weight.scale + scale_row * weight.scale_row_bytes;
      decode_row(weight.format, weight.data + n * weight.row_bytes, scales, weight.k, out);
    }
  }
}

const uint8_t* pack_scales(const Weight& weight, int64_t group, int64_t begin, int64_t count,
                           uint8_t* scales) {
  const int64_t first = group * kGroupRows;
  if (weight.format == WeightFormat::fp8) return weight.scale + first / 32 * weight.scale_row_bytes + begin;
  if (weight.format == WeightFormat::mxfp4) {
    const uint8_t* row[kGroupRows];
    for (int64_t r = 0; r < kGroupRows; ++r) {
      row[r] = weight.scale + std::min(first + r, weight.n - 1) * weight.scale_row_bytes + begin;
    }
    pack_simd::active().scales(row, count, scales);
  }
  return scales;
}

void pack_blocks(const Weight& weight, int64_t group, int64_t begin, int64_t count, uint8_t* codes,
                 uint8_t* scales) {
  const int64_t row_block = words_of_block(weight.format) * 4;  // bytes of a block in one row
  const uint8_t* row[kGroupRows];
  for (int64_t r = 0; r < kGroupRows; ++r) {
    const int64_t n = std::min(group * kGroupRows + r, weight.n - 1);
    row[r] = weight.data + n * weight.row_bytes + begin * row_block;
  }
  const auto& simd = pack_simd::active();
  const int64_t whole = std::min(count, weight.k / kBlock - begin);
  simd.blocks(weight.format, row, whole, codes);
  if (whole < count) {
    uint8_t padded[kGroupRows][kBlock * sizeof(float)] = {};
    const int64_t left = weight.k % kBlock * (row_block / kBlock);
    for (int64_t r = 0; r < kGroupRows; ++r) {
      std::memcpy(padded[r], row[r] + whole * row_block, static_cast<size_t>(left));
      row[r] = padded[r];
    }
    simd.blocks(weight.format, row, 1, codes + whole * block_bytes(weight.format));
  }
  const uint8_t* found = pack_scales(weight, group, begin, count, scales);
  if (found != scales) std::memcpy(scales, found, static_cast<size_t>(count * block_scales(weight.format)));
}

void pack(const Weight& weight, uint8_t* out) {
  const int64_t bytes = group_bytes(weight.format, weight.k), blocks = blocks_of(weight.k);
  const int64_t scales = scale_bytes(weight.format, weight.k);
  parallel_for(groups_of(weight.n), bytes, [&](int64_t first, int64_t last) {
    for (int64_t g = first; g < last; ++g) {
      uint8_t* group = out + g * bytes;
      std::memset(group, 0, static_cast<size_t>(scales));  // also what pads them
      pack_blocks(weight, g, 0, blocks, group + scales, group);
    }
  });
}

}  // namespace di
