// One row of inputs and one packed group: the product that waits for memory. Only for sources of csrc/simd.
#pragma once

#include "simd/decode.hpp"
#include "simd/linear.hpp"

namespace di::linear_simd::DI_ISA {

using namespace simd::DI_ISA;

constexpr int kParts = 16 / kWidth;     // registers that 16 rows take
constexpr int64_t kAheadOfRow = 12288;  // bytes from what is computed with to what is asked for

// Keeps what is computed before in front of what is asked for behind it.
DI_INLINE void in_order([[maybe_unused]] vf& v) {
#if defined(DI_AVX512)
  asm volatile("" : "+v"(v));
#endif
}

// One row and B blocks of a packed group side by side. It waits for memory alone as long as lines are asked
// for one by one, all of the stream, scales included: gcc would ask for those of a step at once, which are
// more than the processor can wait for, and it would stop.
template <WeightFormat F, int B>
DI_INLINE void add_row_blocks(const Codes& at, const uint8_t* ask, bool once, int64_t block,
                              const uint16_t* x, int64_t x_rows, vf (&total)[kParts]) {
  constexpr int kPairs = pairs_of_word(F), kSteps = 16;
  constexpr int64_t kLines = (B * (block_bytes(F) + block_scales(F)) + 32) / 64;
  vf sum[B][kParts] = {};
#pragma GCC unroll 16
  for (int step = 0; step < kSteps; step += kPairs) {
    vu pair[B][kParts][kPairs];
#pragma GCC unroll 4
    for (int i = 0; i < B * kParts; ++i) {
      const int b = i / kParts, part = i % kParts;
      const uint8_t* words = at.codes + (block + b) * block_bytes(F) + 64 * (step / kPairs);
      decode_words<F>(load_once<vu>(words + 4 * kWidth * part), pair[b][part]);
    }
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
#pragma GCC unroll 4
      for (int i = 0; i < B * kParts; ++i) {
        const int b = i / kParts, part = i % kParts;
        uint32_t inputs;
        std::memcpy(&inputs, x + 32 * (block + b) * x_rows + 2 * (step + p), sizeof inputs);
        sum[b][part] = dot_bf16(sum[b][part], pair[b][part][p], repeat(inputs));
        in_order(sum[b][part]);
      }
#pragma GCC unroll 4
      for (int64_t line = kLines * (step + p) / kSteps; line < kLines * (step + p + 1) / kSteps; ++line) {
        ask_once(ask + 64 * line, once);
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < B * kParts; ++i) {
    const int b = i / kParts, part = i % kParts;
    const vf scale = decode_row_scales<F>(at.scales, block + b, kWidth * part, true);
    total[part] = fma(sum[b][part], scale, total[part]);
  }
}

// totals[16] += the row . all blocks of a group; as `narrow` of simd/linear.hpp.
template <WeightFormat F>
DI_INLINE void one_row(const Codes& at, bool once, int64_t blocks, const uint16_t* x, int64_t x_rows,
                       float* totals) {
  constexpr int kSide = kParts > 1 ? 1 : F == WeightFormat::fp8 ? 2 : 4;
  constexpr int64_t kStep = block_bytes(F) + block_scales(F);
  // The stream of a group begins with its scales; the next group's follows.
  const int64_t end = group_bytes(F, 32 * blocks);
  const auto ask = [&](int64_t block) __attribute__((always_inline)) {
    const int64_t offset = block * kStep + kAheadOfRow;
    return offset < end ? at.scales + offset : at.next + (offset - end);
  };
  vf total[kParts];
  for (int part = 0; part < kParts; ++part) total[part] = load<vf>(totals + kWidth * part);
  int64_t b = 0;
  for (; b + kSide <= blocks; b += kSide) add_row_blocks<F, kSide>(at, ask(b), once, b, x, x_rows, total);
  for (; b < blocks; ++b) add_row_blocks<F, 1>(at, ask(b), once, b, x, x_rows, total);
  for (int part = 0; part < kParts; ++part) store(totals + kWidth * part, total[part]);
}

}  // namespace di::linear_simd::DI_ISA
