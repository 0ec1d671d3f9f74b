// What the machine can do at most, for benchmarks to compare with: a plain read of memory, and loops of
// the two instructions that kernels compute with. Operands are in registers; on amx they are tiles loaded
// from the first cache.
#pragma once

#include <cstdint>

#include "isa.hpp"

namespace di::ceilings_simd {

constexpr int64_t kSteps = 12;                          // vectors of 16 lanes in one iteration
constexpr int64_t kMultiplyAddFlops = kSteps * 16 * 2;  // of one iteration of multiply_add

struct Table {
  uint64_t (*read)(const uint8_t* p, int64_t n);  // exclusive or of the whole 64-byte lines of n bytes
  int64_t dot_flops;                              // of one iteration of dot_bf16
  float (*dot_bf16)(int64_t iterations);
  float (*multiply_add)(int64_t iterations);
};
DI_AMX_FAMILY

}  // namespace di::ceilings_simd
