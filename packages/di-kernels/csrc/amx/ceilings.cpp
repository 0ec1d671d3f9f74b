#include "simd/ceilings.hpp"

#include "amx/tiles.hpp"

namespace di::ceilings_simd::amx {
namespace {

constexpr int64_t kSums = 4, kDots = 16;  // sums that do not wait for each other; dots of one iteration

float dot_bf16(int64_t iterations) {
  using namespace ::di::amx;
  alignas(64) uint8_t tile[kTileBytes] = {};
  const Tiles tiles(kTileRows);
  load_tile<4>(tile);
  load_tile<5>(tile);
  load_tile<6>(tile);
  load_tile<7>(tile);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 4
    for (int64_t j = 0; j < kDots / kSums; ++j) {
      dot_tiles<0, 4, 6>();
      dot_tiles<1, 4, 7>();
      dot_tiles<2, 5, 6>();
      dot_tiles<3, 5, 7>();
    }
  }
  store_tile<0>(tile);
  float first;
  std::memcpy(&first, tile, sizeof first);
  return first;
}

// As on avx512bf16. Called, not copied: its table is no constant when this one is built.
uint64_t read(const uint8_t* p, int64_t n) { return avx512bf16::table.read(p, n); }
float multiply_add(int64_t iterations) { return avx512bf16::table.multiply_add(iterations); }

}  // namespace

const Table table = {.read = read,
                     .dot_flops = kDots * ::di::amx::kTileDotFlops,
                     .dot_bf16 = dot_bf16,
                     .multiply_add = multiply_add};

}  // namespace di::ceilings_simd::amx
