#include "simd/linear.hpp"

#include "amx/tiles.hpp"
#include "amx/weights.hpp"

namespace di::linear_simd::amx {
namespace {

using namespace simd::amx;
using namespace ::di::amx;

// Blocks are decoded a stage before the rows meet them: a tile is read from the first cache, and not sooner
// than it has arrived there.
constexpr int64_t kStageBlocks = 4;

template <WeightFormat F>
constexpr bool kPlain = F == WeightFormat::bfloat16;  // tiles are read where they lie

struct Stage {
  alignas(64) uint8_t tiles[kStageBlocks][kTileBytes];
};

// One or two groups and their inputs.
template <WeightFormat F>
struct Product {
  const Codes* groups;
  int64_t blocks;
  const uint16_t* x;
  int64_t x_rows, rows;
  float* totals;
  Stage stages[2][kTileGroups];
};

// The blocks of a stage, and how many of the next one are decoded meanwhile.
struct Part {
  int64_t begin, count, ahead;
  int turn;
};

// Asks for what comes later and decodes a block of group `g` into its place of a stage.
template <WeightFormat F>
DI_INLINE void prepare(Product<F>& p, int64_t g, int64_t block, Stage* stage) {
  const Codes& group = p.groups[g];
  const int64_t offset = block * block_bytes(F), behind = offset + group.ahead - p.blocks * block_bytes(F);
  const uint8_t* ask = behind < 0 ? group.codes + offset + group.ahead : group.next + behind;
  const uint8_t *codes = group.codes + offset, *scales = group.scales + block * block_scales(F);
  uint8_t* tile = stage->tiles[block % kStageBlocks];
  if constexpr (F == WeightFormat::mxfp4) decode_mxfp4(codes, scales, ask, tile);
  if constexpr (F == WeightFormat::fp8) decode_fp8(codes, scales, ask, tile);
  if constexpr (kPlain<F>) {
    for (int64_t i = 0; i < block_bytes(F); i += 64) ask_line<F>(ask + i);
  }
}

template <WeightFormat F>
DI_INLINE const uint8_t* tile_of(const Product<F>& p, const Part& part, int64_t g, int64_t block) {
  if constexpr (kPlain<F>) return p.groups[g].codes + block * block_bytes(F);
  return p.stages[part.turn][g].tiles[block % kStageBlocks];
}

// R tiles of rows, the last one from row `last` on, and G groups: their totals stay in tiles. Two tiles may
// have rows in common, which then get the same totals twice.
template <WeightFormat F, int R, int G>
void add_part(Product<F>& p, const Part& part, int64_t first, int64_t last, bool prepares) {
  const auto each = [&]<class Body>(const Body& body) __attribute__((always_inline)) {
    body.template operator()<0, 0>();
    if constexpr (G > 1) body.template operator()<0, 1>();
    if constexpr (R > 1) body.template operator()<1, 0>();
    if constexpr (R > 1 && G > 1) body.template operator()<1, 1>();
  };
  const auto total = [&](int r, int g) __attribute__((always_inline)) {
    return p.totals + 16 * (g * p.rows + (r == 0 ? first : last));
  };
  each([&]<int r, int g>() __attribute__((always_inline)) { load_tile<2 * r + g>(total(r, g)); });
  for (int64_t b = 0; b < part.count; ++b) {
    const int64_t block = part.begin + b;
    const uint16_t* x = p.x + 32 * p.x_rows * block;
    load_tile<4>(x + 32 * first);
    load_tile<6>(tile_of(p, part, 0, block));
    dot_tiles<0, 4, 6>();
    if constexpr (G > 1) {
      load_tile<7>(tile_of(p, part, 1, block));
      dot_tiles<1, 4, 7>();
    }
    if constexpr (R > 1) {
      load_tile<5>(x + 32 * last);
      dot_tiles<2, 5, 6>();
      if constexpr (G > 1) dot_tiles<3, 5, 7>();
    }
    if (prepares && b < part.ahead) {
      for (int g = 0; g < G; ++g) prepare(p, g, block + kStageBlocks, &p.stages[1 - part.turn][g]);
    }
  }
  each([&]<int r, int g>() __attribute__((always_inline)) { store_tile<2 * r + g>(total(r, g)); });
}

template <WeightFormat F, int G>
void add_stages(Product<F>& p) {
  const auto size = [&](int64_t begin) {
    const int64_t left = p.blocks - begin;
    return left < 0 ? 0 : left < kStageBlocks ? left : kStageBlocks;
  };
  for (int64_t b = 0; b < size(0); ++b) {
    for (int g = 0; g < G; ++g) prepare(p, g, b, &p.stages[0][g]);
  }
  Part part{0, size(0), size(kStageBlocks), 0};
  const int64_t pairs = (p.rows + 2 * kTileRows - 1) / (2 * kTileRows);
  while (part.count > 0) {
    if (p.rows <= kTileRows) add_part<F, 1, G>(p, part, 0, 0, true);
    for (int64_t i = 0; i < pairs && p.rows > kTileRows; ++i) {  // of nearly equal height
      const int64_t first = p.rows * i / pairs, end = p.rows * (i + 1) / pairs;
      add_part<F, 2, G>(p, part, first, end - kTileRows, i == 0);
    }
    const int64_t begin = part.begin + kStageBlocks;
    part = {begin, size(begin), size(begin + kStageBlocks), 1 - part.turn};
  }
}

// Totals are added up over the blocks as they are: their scales are in the weights.
template <WeightFormat F>
void narrow_of(const Codes* groups, int64_t count, int64_t blocks, const uint16_t* x, int64_t x_rows,
               int64_t rows, float* totals) {
  if (rows == 0) return;
  const Tiles tiles(rows < kTileRows ? rows : kTileRows);
  Product<F> product{groups, blocks, x, x_rows, rows, totals};
  if (count == 2) {
    add_stages<F, 2>(product);
  } else {
    add_stages<F, 1>(product);
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
