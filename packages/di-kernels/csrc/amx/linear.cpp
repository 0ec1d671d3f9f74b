#include "simd/linear.hpp"

#include "amx/tiles.hpp"
#include "amx/weights.hpp"

namespace di::linear_simd::amx {
namespace {

using namespace simd::amx;
using namespace ::di::amx;

// So many blocks before the rows meet it a block is decoded: its tile is read from the first cache, and not sooner
// than it has arrived there.
constexpr int64_t kAhead = 4, kSlots = 2 * kAhead;

template <WeightFormat F>
constexpr bool kPlain = F == WeightFormat::bfloat16;  // tiles are read where they lie

// One or two groups, their inputs, and the tiles of the blocks at hand.
struct Product {
  const Codes* groups;
  int64_t blocks;
  const uint16_t* x;
  int64_t x_rows, rows;
  float* totals;
  alignas(64) uint8_t tiles[kTileGroups][kSlots][kTileBytes];
};

template <WeightFormat F>
DI_INLINE const uint8_t* tile_of(const Product& p, int64_t g, int64_t block) {
  if constexpr (kPlain<F>) return p.groups[g].codes + block * block_bytes(F);
  return p.tiles[g][block % kSlots];
}

// Decodes a block of group g, and asks for what comes later.
template <WeightFormat F>
DI_INLINE void prepare(Product& p, int64_t g, int64_t block) {
  const Codes& group = p.groups[g];
  const int64_t offset = block * block_bytes(F), behind = offset + group.ahead - p.blocks * block_bytes(F);
  const uint8_t* ask = behind < 0 ? group.codes + offset + group.ahead : group.next + behind;
  const uint8_t *codes = group.codes + offset, *scales = group.scales + block * block_scales(F);
  uint8_t* tile = p.tiles[g][block % kSlots];
  if constexpr (F == WeightFormat::mxfp4) decode_mxfp4(codes, scales, ask, tile);
  if constexpr (F == WeightFormat::fp8) decode_fp8(codes, scales, ask, tile);
  if constexpr (kPlain<F>) {
    for (int64_t i = 0; i < block_bytes(F); i += 64) ask_line<F>(ask + i);
  }
}

// Blocks begin.. of R tiles of rows, the last one from row `last` on, and G groups: their totals stay in tiles.
// Two tiles may have rows in common, which then get the same totals twice. Blocks that come kAhead later are
// decoded meanwhile, piece by piece, where `prepares`.
template <WeightFormat F, int R, int G>
void add_blocks(Product& p, int64_t begin, int64_t end, int64_t first, int64_t last, bool prepares) {
  const auto total = [&](int r, int g) __attribute__((always_inline)) {
    return p.totals + 16 * (g * p.rows + (r == 0 ? first : last));
  };
  load_tile<0>(total(0, 0));
  if constexpr (G > 1) load_tile<1>(total(0, 1));
  if constexpr (R > 1) load_tile<2>(total(1, 0));
  if constexpr (R > 1 && G > 1) load_tile<3>(total(1, 1));
  for (int64_t b = begin; b < end; ++b) {
    const uint16_t* x = p.x + 32 * p.x_rows * b;
    const bool next = prepares && b + kAhead < p.blocks;
    if (next) prepare<F>(p, 0, b + kAhead);
    load_tile<4>(x + 32 * first);
    load_tile<6>(tile_of<F>(p, 0, b));
    dot_tiles<0, 4, 6>();
    if constexpr (R > 1) {
      load_tile<5>(x + 32 * last);
      dot_tiles<2, 5, 6>();
    }
    if constexpr (G > 1) {
      if (next) prepare<F>(p, 1, b + kAhead);
      load_tile<7>(tile_of<F>(p, 1, b));
      dot_tiles<1, 4, 7>();
      if constexpr (R > 1) dot_tiles<3, 5, 7>();
    }
  }
  store_tile<0>(total(0, 0));
  if constexpr (G > 1) store_tile<1>(total(0, 1));
  if constexpr (R > 1) store_tile<2>(total(1, 0));
  if constexpr (R > 1 && G > 1) store_tile<3>(total(1, 1));
}

template <WeightFormat F, int G>
void add_all(Product& p) {
  for (int64_t b = 0; b < p.blocks && b < kAhead; ++b) {
    for (int g = 0; g < G; ++g) prepare<F>(p, g, b);
  }
  if (p.rows <= kTileRows) return add_blocks<F, 1, G>(p, 0, p.blocks, 0, 0, true);
  const int64_t pairs = (p.rows + 2 * kTileRows - 1) / (2 * kTileRows);  // of nearly equal height
  const int64_t step = pairs == 1 ? p.blocks : kAhead;
  for (int64_t begin = 0; begin < p.blocks; begin += step) {
    const int64_t left = p.blocks - begin, end = begin + (left < step ? left : step);
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t first = p.rows * i / pairs, last = p.rows * (i + 1) / pairs - kTileRows;
      add_blocks<F, 2, G>(p, begin, end, first, last, i == 0);
    }
  }
}

// Totals are added up over the blocks as they are: their scales are in the weights.
template <WeightFormat F>
void narrow_of(const Codes* groups, int64_t count, int64_t blocks, const uint16_t* x, int64_t x_rows,
               int64_t rows, float* totals) {
  if (rows == 0) return;
  const Tiles tiles(rows < kTileRows ? rows : kTileRows);
  Product product{groups, blocks, x, x_rows, rows, totals};
  if (count == 2) {
    add_all<F, 2>(product);
  } else {
    add_all<F, 1>(product);
  }
}

void narrow(WeightFormat format, const Codes* groups, int64_t count, int64_t blocks, const uint16_t* x,
            int64_t x_rows, int64_t rows, float* totals) {
  switch (format) {
    case WeightFormat::bfloat16:
      return narrow_of<WeightFormat::bfloat16>(groups, count, blocks, x, x_rows, rows, totals);
    case WeightFormat::fp8:
      return narrow_of<WeightFormat::fp8>(groups, count, blocks, x, x_rows, rows, totals);
    case WeightFormat::mxfp4:
      return narrow_of<WeightFormat::mxfp4>(groups, count, blocks, x, x_rows, rows, totals);
    case WeightFormat::float32:
      return;  // has no bfloat16 product
  }
}

void wide(WeightFormat format, const Codes* groups, int64_t count, int64_t blocks, const float* x,
          int64_t x_rows, int64_t rows, float* totals) {
  avx512bf16::table.wide(format, groups, count, blocks, x, x_rows, rows, totals);
}

void store_bf16(const float* totals, int64_t stride, int64_t rows, int64_t count, uint16_t* y,
                int64_t y_stride) {
  avx512bf16::table.store_bf16(totals, stride, rows, count, y, y_stride);
}

void store_float(const float* totals, int64_t stride, int64_t rows, int64_t count, float* y,
                 int64_t y_stride) {
  avx512bf16::table.store_float(totals, stride, rows, count, y, y_stride);
}

}  // namespace

const Table table = {.input_bytes = 1 << 20,
                     .narrow = narrow,
                     .wide = wide,
                     .lane_rows = 0,
                     .few_stored_rows = 0,
                     .few_stored = nullptr,
                     .store_bf16 = store_bf16,
                     .store_float = store_float};

}  // namespace di::linear_simd::amx
