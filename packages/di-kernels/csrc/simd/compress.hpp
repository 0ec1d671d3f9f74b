// The pooling of two tokens into one compressed entry (cpu/compress.hpp), channel by channel.
#pragma once

#include "isa.hpp"
#include "numeric.hpp"
#include "simd/by_type.hpp"

namespace di::compress_simd {

template <class T>
struct Loops {
  // Scores and latents of the two tokens, float32 [dim] each, at any alignment.
  void (*pool)(const float* score0, const float* latent0, const float* score1, const float* latent1,
               int64_t dim, T* out);
};

using Table = ByType<Loops>;
DI_SIMD_FAMILY

}  // namespace di::compress_simd
