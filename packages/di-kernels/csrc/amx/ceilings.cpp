#include "simd/ceilings.hpp"

#include "amx/tiles.hpp"

namespace di::ceilings_simd::amx {
namespace {

constexpr int64_t kDots = 16;  // of one iteration

// Two tiles of rows and two of columns meet, which eight registers allow: four loads for four dots. The
// processor runs a fifth slower for loads of numbers that are not zero, which no product does without.
float dot_bf16(int64_t iterations) {
  using namespace ::di::amx;
  alignas(64) uint16_t tile[kTileBytes / 2];
  for (uint16_t& half : tile) half = 0x3f00;  // the bfloat16 number 0.5
  configure_tiles(kTileRows);
  zero_tile<0>();
  zero_tile<1>();
  zero_tile<2>();
  zero_tile<3>();
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < kDots / 4; ++j) {
      load_tile<4>(tile);
      load_tile<6>(tile);
      dot_tiles<0, 4, 6>();
      load_tile<5>(tile);
      dot_tiles<2, 5, 6>();
      load_tile<7>(tile);
      dot_tiles<1, 4, 7>();
      dot_tiles<3, 5, 7>();
    }
  }
  store_tile<0>(tile);
  float first;
  std::memcpy(&first, tile, sizeof first);
  return first;
}

// What is as on avx512bf16 is called, not copied: its table is no constant when this one is built.
constexpr Table kTable = {.read = [](auto... a) { return avx512bf16::table.read(a...); },
                          .dot_flops = kDots * ::di::amx::kTileDotFlops,
                          .dot_bf16 = dot_bf16,
                          .multiply_add = [](auto... a) { return avx512bf16::table.multiply_add(a...); }};

}  // namespace

const Table table = kTable;

}  // namespace di::ceilings_simd::amx
