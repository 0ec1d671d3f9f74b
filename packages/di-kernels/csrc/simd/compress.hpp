// The pooling of two tokens into one compressed entry (cpu/compress.hpp), channel by channel.
#pragma once

#include "isa.hpp"
#include "numeric.hpp"

namespace di::compress_simd {

struct Table {
  // Scores and latents of the two tokens, float32 [dim] each, at any alignment.
  void (*pool_float)(const float* score0, const float* latent0, const float* score1, const float* latent1,
                     int64_t dim, float* out);
  void (*pool_bf16)(const float* score0, const float* latent0, const float* score1, const float* latent1,
                    int64_t dim, bf16* out);

  auto pool(float*) const { return pool_float; }
  auto pool(bf16*) const { return pool_bf16; }
};
DI_SIMD_FAMILY

}  // namespace di::compress_simd
