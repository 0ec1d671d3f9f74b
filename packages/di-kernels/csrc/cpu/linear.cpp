#include "cpu/linear.hpp"

#include <algorithm>
#include <vector>

#include "cpu/ceil_div.hpp"
#include "parallel.hpp"
#include "simd/linear.hpp"
#include "simd/stored_linear.hpp"

namespace di {
namespace {

using linear_simd::Codes;
using linear_simd::kTileGroups;
using linear_simd::OneRow;
using linear_simd::Table;

constexpr int64_t kPartBlocks = 16;         // a part of the inputs has a multiple of so many blocks
constexpr int64_t kRowGroups = 64;          // that a single row meets once it is widened
constexpr int64_t kStoredBytes = 16 << 10;  // of a weight as stored, packed at once: stays in the first cache

// What multiply() packs; a thread uses the same memory again and again.
struct Scratch {
  alignas(64) uint8_t codes[kTileGroups][kStoredBytes];
  alignas(64) uint8_t scales[kTileGroups][kStoredBytes / 16];  // of MXFP4
};

// How far what is asked for is in front. The cheaper the bytes are to compute with, the more of them are
// asked for at once.
constexpr int64_t ahead(WeightFormat format) { return format == WeightFormat::mxfp4 ? 12288 : 8192; }

// Blocks of a group of a packed weight, behind which the thread takes those of the one that lies `apart`
// further.
Codes packed_group(const Weight& weight, int64_t group, int64_t apart, int64_t begin, int64_t count) {
  const int64_t bytes = group_bytes(weight.format, weight.k), block = block_bytes(weight.format);
  const int64_t scale = begin * block_scales(weight.format), next = apart * bytes;
  const uint8_t* base = weight.data + group * bytes;
  const uint8_t* codes = base + scale_bytes(weight.format, weight.k) + begin * block;
  if (count == blocks_of(weight.k)) return {codes, base, base + next, ahead(weight.format)};
  for (int64_t i = 0; i < count * block_scales(weight.format); i += 64) {
    __builtin_prefetch(base + scale + next + i);
  }
  return {codes, base + scale, codes + next, count * block};
}

// Blocks of a group as stored, packed into the scratch of place `slot`. What is asked for meanwhile is their
// share of the groups that come next, in the order in which these lie in memory: 16 rows that are read side
// by side would reach memory as 16 slow streams.
Codes packed_blocks(const Weight& weight, int64_t group, int64_t apart, int64_t begin, int64_t count,
                    int64_t slot) {
  thread_local Scratch scratch;
  const int64_t bytes = block_bytes(weight.format), next = (group + apart) * kGroupRows;
  pack_blocks(weight, group, begin, count, scratch.codes[slot], scratch.scales[slot]);
  return {scratch.codes[slot], scratch.scales[slot], weight.data + next * weight.row_bytes + begin * bytes,
          count * bytes};
}

// The scale bytes of a group of MXFP4 as stored.
struct ScaleBytes {
  const uint8_t* first;
  int64_t count;
};
ScaleBytes scale_bytes_of(const Weight& weight, int64_t group) {
  if (weight.format != WeightFormat::mxfp4 || group >= groups_of(weight.n)) return {nullptr, 0};
  const int64_t row = group * kGroupRows, rows = std::min(kGroupRows, weight.n - row);
  return {weight.scale + row * weight.scale_row_bytes, rows * weight.scale_row_bytes};
}

// The first `blocks` blocks of a whole group, where they lie; `row` is null, or what x is.
void multiply_in_place(const Table& simd, const Weight& weight, int64_t group, int64_t blocks,
                       const BlockedRows& x, const OneRow* row, float* totals) {
  thread_local Buffer scale_buffer;
  const int64_t bytes = kGroupRows * weight.row_bytes;
  const uint8_t *codes = weight.data + group * bytes, *next = codes + bytes;
  uint8_t* packed = scale_buffer.reserve<uint8_t>(blocks * block_scales(weight.format));
  const uint8_t* scales = pack_scales(weight, group, 0, blocks, packed);
  const ScaleBytes ask = scale_bytes_of(weight, group + 1);
  if (x.lanes != nullptr) {
    const stored_linear_simd::Rows rows{codes, weight.row_bytes, scales, next, ask.first, ask.count};
    stored_linear_simd::active().add(weight.format, rows, blocks, x.lanes, x.rows, totals);
  } else {
    for (int64_t i = 0; i < ask.count; i += 64) __builtin_prefetch(ask.first + i);
    const Codes stored{codes, scales, next, 0};
    if (row != nullptr) {
      return simd.one_stored_row(weight.format, stored, weight.row_bytes, blocks, *row, totals);
    }
    simd.few_stored(weight.format, stored, weight.row_bytes, blocks, static_cast<const uint16_t*>(x.data),
                    x.rows, x.rows, totals);
  }
}

// Whole blocks of whole groups are read in place, what needs padding is packed.
void multiply_stored_group(const Table& simd, const Weight& weight, int64_t group, const BlockedRows& x,
                           const OneRow* row, float* totals) {
  const bool full = (group + 1) * kGroupRows <= weight.n;
  const int64_t blocks = blocks_of(weight.k), whole = full ? weight.k / kBlock : 0;
  if (whole > 0) multiply_in_place(simd, weight, group, whole, x, row, totals);
  const int64_t step = kStoredBytes / block_bytes(weight.format);
  for (int64_t b = whole; b < blocks; b += step) {
    const int64_t count = std::min(step, blocks - b);
    const Codes codes = packed_blocks(weight, group, 1, b, count, 0);
    const auto* rows = static_cast<const uint16_t*>(x.data) + b * x.rows * kBlock;
    simd.narrow(weight.format, &codes, 1, count, rows, x.rows, x.rows, totals);
  }
}

// Blocks begin.. of groups in the packed layout.
void multiply_packed(const Table& simd, WeightFormat format, const Codes* codes, int64_t groups,
                     int64_t begin, int64_t count, const BlockedRows& x, float* totals) {
  const int64_t offset = begin * x.rows * kBlock;
  if (x.wide) {
    const auto* rows = static_cast<const float*>(x.data) + offset;
    simd.wide(format, codes, groups, count, rows, x.rows, x.rows, totals);
  } else {
    const auto* rows = static_cast<const uint16_t*>(x.data) + offset;
    simd.narrow(format, codes, groups, count, rows, x.rows, x.rows, totals);
  }
}

// Blocks begin..begin+count-1 of groups that share the loads of the inputs.
void multiply_tile(const Table& simd, const Weight& weight, int64_t group, int64_t groups, int64_t begin,
                   int64_t count, const BlockedRows& x, const LaterLines& later, float* totals) {
  const int64_t end = begin + count;
  const int64_t step = weight.packed ? count : kStoredBytes / block_bytes(weight.format);
  for (int64_t b = begin; b < end; b += step) {
    const int64_t here = std::min(step, end - b);
    Codes codes[kTileGroups];
    for (int64_t g = 0; g < groups; ++g) {
      codes[g] = weight.packed ? packed_group(weight, group + g, groups, b, here)
                               : packed_blocks(weight, group + g, groups, b, here, g);
    }
    if (b == begin) codes[0].later = later;
    multiply_packed(simd, weight.format, codes, groups, b, here, x, totals);
  }
}

// Blocks of the inputs that meet all groups before the next ones do.
int64_t blocks_at_once(const Table& simd, int64_t k, int64_t rows, bool wide) {
  const int64_t blocks = blocks_of(k), bytes = rows * kBlock * 2;
  if (wide || blocks * bytes <= simd.input_bytes) return blocks;
  return std::max(kPartBlocks, simd.part_bytes / bytes / kPartBlocks * kPartBlocks);
}

// Of the `count` blocks of inputs from `begin` on, behind the last of which the first ones follow, the share
// that may be asked for while the groups from `group` on are computed.
LaterLines later_inputs(const BlockedRows& x, int64_t blocks, int64_t begin, int64_t count, int64_t group,
                        int64_t groups) {
  if (count >= blocks) return {};  // are met again at once
  const int64_t line = x.rows * kBlock * 2 / 64, first = begin < blocks ? begin : 0;
  const int64_t lines = std::min(count, blocks - first) * line;
  const int64_t from = lines * group / groups, to = lines * std::min(groups, group + kTileGroups) / groups;
  return {static_cast<const uint8_t*>(x.data) + (first * line + from) * 64, to - from};
}

void multiply_groups(const Table& simd, const Weight& weight, int64_t group, int64_t groups,
                     const BlockedRows& x, float* totals) {
  const int64_t blocks = blocks_of(weight.k), size = x.rows * kGroupRows;
  if (!weight.packed && !x.wide && (x.lanes != nullptr || x.rows <= simd.few_stored_rows)) {
    for (int64_t g = 0; g < groups; ++g) {
      multiply_stored_group(simd, weight, group + g, x, nullptr, totals + g * size);
    }
    return;
  }
  const int64_t step = blocks_at_once(simd, weight.k, x.rows, x.wide);
  for (int64_t b = 0; b < blocks; b += step) {
    const int64_t count = std::min(step, blocks - b);
    for (int64_t g = 0; g < groups; g += kTileGroups) {
      const int64_t here = std::min(kTileGroups, groups - g);
      multiply_tile(simd, weight, group + g, here, b, count, x,
                    later_inputs(x, blocks, b + step, count, g, groups), totals + g * size);
    }
  }
}

// One row of inputs, in the way that the instruction set has for it.
void multiply_row(const Table& simd, const Weight& weight, int64_t group, int64_t groups,
                  const BlockedRows& x, float* totals) {
  thread_local Buffer widened;
  const int64_t blocks = blocks_of(weight.k);
  const auto* data = static_cast<const uint16_t*>(x.data);
  const OneRow row = simd.widen_row(data, blocks, widened.reserve<float>(blocks * kBlock));
  if (weight.packed) {
    const uint8_t* first = weight.data + group * group_bytes(weight.format, weight.k);
    return simd.one_row(weight.format, first, groups, blocks, row, totals);
  }
  for (int64_t g = 0; g < groups; ++g) {
    multiply_stored_group(simd, weight, group + g, x, &row, totals + g * kGroupRows);
  }
}

}  // namespace

// Which loop computes a product, by the field of simd/linear.hpp's Table that leads to it:
//
//   float32 inputs, or weights   wide            staged_rows (simd/staged_rows.hpp)
//   packed, one row              one_row         amx/one_row.hpp; other sets: narrow, simd/one_row.hpp
//   packed, more rows            narrow          few_rows, staged_rows; on amx add_few_rows, add_many_rows
//   as stored, lane_rows         (lanes)         simd/stored_linear.hpp; none on amx
//   as stored, one row           one_stored_row  amx/one_row.hpp; other sets: the line above
//   as stored, few_stored_rows   few_stored      few_rows of a StoredGroup; on amx add_few_rows
//   as stored, more              narrow          of what packed_blocks() packs
void multiply(const Weight& weight, int64_t group, int64_t groups, const BlockedRows& x, float* totals) {
  const Table& simd =
      linear_simd::active();  // of the whole product, if another thread chooses another one too
  std::fill_n(totals, groups * x.rows * kGroupRows, 0.0f);
  if (x.wide) return multiply_groups(simd, weight, group, groups, x, totals);
  const FlushedSubnormals flushed;
  if (x.rows == 1 && simd.widen_row != nullptr) return multiply_row(simd, weight, group, groups, x, totals);
  multiply_groups(simd, weight, group, groups, x, totals);
}

int64_t groups_at_once(const Weight& weight, const BlockedRows& x) {
  const Table& simd = linear_simd::active();
  if (x.rows == 1 && !x.wide && simd.widen_row != nullptr) return kRowGroups;
  if (blocks_at_once(simd, weight.k, x.rows, x.wide) >= blocks_of(weight.k)) return kTileGroups;
  const int64_t held = simd.total_bytes / (x.rows * kGroupRows * 4);
  return std::max<int64_t>(1, held / kTileGroups) * kTileGroups;
}

void store_totals(const float* totals, int64_t stride, int64_t rows, int64_t count, bf16* y,
                  int64_t y_stride) {
  linear_simd::active().store_bf16(totals, stride, rows, count, reinterpret_cast<uint16_t*>(y), y_stride);
}

void store_totals(const float* totals, int64_t stride, int64_t rows, int64_t count, float* y,
                  int64_t y_stride) {
  linear_simd::active().store_float(totals, stride, rows, count, y, y_stride);
}

namespace {

// y[m, j] of rows begin..end-1 of the weight, as far as they lie in the groups from `group` on.
template <class T>
void project_groups(const Weight& weight, int64_t group, int64_t most, int64_t begin, int64_t end,
                    const BlockedRows& x, T* y, int64_t y_stride) {
  thread_local Buffer sums;
  const int64_t groups = std::min(most, groups_of(end) - group);
  float* totals = sums.reserve<float>(groups * x.rows * kGroupRows + kGroupRows);
  multiply(weight, group, groups, x, totals);
  const bool whole = begin <= group * kGroupRows && (group + groups) * kGroupRows <= end;
  if (whole && groups > kTileGroups) {  // row by row: whole lines of y
    for (int64_t m = 0; m < x.rows; ++m) {
      store_totals(totals + m * kGroupRows, x.rows * kGroupRows, groups, kGroupRows,
                   y + m * y_stride + (group * kGroupRows - begin), kGroupRows);
    }
    return;
  }
  for (int64_t g = group; g < group + groups; ++g) {
    const int64_t low = std::max(begin, g * kGroupRows), high = std::min(end, (g + 1) * kGroupRows);
    store_totals(totals + (g - group) * x.rows * kGroupRows + low % kGroupRows, kGroupRows, x.rows,
                 high - low, y + (low - begin), y_stride);
  }
}

// Inputs `parts` times side by side, part p of all rows at x[p]; part p meets rows p*n/parts ..
template <class T>
void project(const BlockedRows* x, int64_t parts, const Weight& weight, T* y) {
  const int64_t size = weight.n / parts, tile = kTileGroups * kGroupRows;
  const int64_t split = size % kGroupRows == 0 ? 0 : 2;  // groups that two parts have a share of
  const int64_t tiles = ceil_div(size / kGroupRows + split, kTileGroups);
  const int64_t most = groups_at_once(weight, x[0]) / kTileGroups;
  parallel_for(parts * tiles, tile * weight.k * (x[0].rows + 2), [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last;) {
      const int64_t part = i / tiles, begin = part * size, end = begin + size;
      const int64_t group = begin / kGroupRows + i % tiles * kTileGroups;
      const int64_t count = std::min({most, last - i, tiles - i % tiles});
      if (group * kGroupRows < end) {
        project_groups(weight, group, count * kTileGroups, begin, end, x[part], y + begin, weight.n);
      }
      i += count;
    }
  });
}

}  // namespace

template <class TIn, class TOut>
void linear(const TIn* x, int64_t rows, const Weight& weight, bool quantize_input, TOut* y) {
  thread_local Buffer buffer;
  const int64_t step = linear_simd::active().row_block;
  for (int64_t start = 0; start < rows; start += step) {
    const int64_t count = std::min(step, rows - start);
    const BlockedRows blocked =
        block_rows(x + start * weight.k, weight.k, count, weight, quantize_input, buffer);
    project<TOut>(&blocked, 1, weight, y + start * weight.n);
  }
}

template <class T>
void grouped_linear(const T* x, int64_t rows, int64_t groups, const Weight& weight, T* y) {
  thread_local std::vector<Buffer> buffers;
  thread_local std::vector<BlockedRows> blocked;
  if (static_cast<int64_t>(buffers.size()) < groups) buffers.resize(static_cast<size_t>(groups));
  const int64_t stride = groups * weight.k, step = linear_simd::active().row_block;
  for (int64_t start = 0; start < rows; start += step) {
    const int64_t count = std::min(step, rows - start);
    blocked.clear();
    for (int64_t g = 0; g < groups; ++g) {
      const T* part = x + start * stride + g * weight.k;
      blocked.push_back(block_rows(part, stride, count, weight, false, buffers[g]));
    }
    project<T>(blocked.data(), groups, weight, y + start * weight.n);
  }
}

template void linear<float, float>(const float*, int64_t, const Weight&, bool, float*);
template void linear<float, bf16>(const float*, int64_t, const Weight&, bool, bf16*);
template void linear<bf16, float>(const bf16*, int64_t, const Weight&, bool, float*);
template void linear<bf16, bf16>(const bf16*, int64_t, const Weight&, bool, bf16*);
template void grouped_linear<float>(const float*, int64_t, int64_t, const Weight&, float*);
template void grouped_linear<bf16>(const bf16*, int64_t, int64_t, const Weight&, bf16*);

}  // namespace di
