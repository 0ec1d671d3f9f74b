// The tile registers of Intel's AMX: up to 16 rows of 64 bytes each. Only for sources of csrc/amx.
//
// Instructions are spelled out: gcc's own intrinsics do not tell it which memory they read and write.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/simd.hpp"
#include "tile_state.hpp"

namespace di::amx {

constexpr int64_t kTileRows = 16, kTileRowBytes = 64, kTileBytes = kTileRows * kTileRowBytes;
constexpr int64_t kTileDotFlops = 2 * 16 * 16 * 32;  // of one dot of whole tiles

// Tiles 0 to 5 of this thread have so many rows from now on, 6 and 7 all. What is in them is lost where it
// changes.
DI_INLINE void configure_tiles(int64_t rows) {
  if (tile_rows == rows) return;
  struct {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } shapes;  // as LDTILECFG reads them
  for (int i = 0; i < 8; ++i) {
    shapes.row_bytes[i] = kTileRowBytes;
    shapes.rows[i] = static_cast<uint8_t>(i < 6 ? rows : kTileRows);
  }
  asm volatile("ldtilecfg %0" : : "m"(shapes));
  tile_rows = rows;
}

template <int Tile>
DI_INLINE void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(Tile));
}

// Rows of a tile are `stride` bytes apart in memory.
template <int Tile>
DI_INLINE void load_tile(const void* p, int64_t stride = kTileRowBytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(Tile) : "memory");
}

// The same for what is not read again soon: it does not push much else out of the first cache.
template <int Tile>
DI_INLINE void load_tile_once(const void* p) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(kTileRowBytes), "i"(Tile) : "memory");
}

template <int Tile>
DI_INLINE void store_tile(void* p, int64_t stride = kTileRowBytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(Tile) : "memory");
}

// sum[m][n] += the dot of row m of `A` with column n of `B`, of 32 bfloat16 numbers: those at even places are
// added up from zero, those at odd places too, both in order by fused multiply-adds, and their sum is added.
// Row p of B holds elements 2p and 2p + 1 of its columns. Subnormals are read and written as zero.
template <int Sum, int A, int B>
DI_INLINE void dot_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sum), "i"(A), "i"(B));
}

}  // namespace di::amx
