#include "simd/linear.hpp"

#include "amx/tiles.hpp"
#include "amx/weights.hpp"

namespace di::linear_simd::amx {
namespace {

using namespace simd::amx;
using namespace ::di::amx;

// So many blocks before the rows meet it a block is decoded: its tile is read from the first cache, and not
// sooner than it has arrived there.
constexpr int64_t kAhead = 4, kSlots = 2 * kAhead;

// One or two groups, packed or one as stored, their inputs, and the tiles of the blocks at hand.
template <WeightFormat F, bool kStored>
struct Product {
  static constexpr bool kInPlace = F == WeightFormat::bfloat16 && !kStored;  // tiles are read where they lie

  const Codes* groups;
  int64_t row_bytes, blocks;
  const uint16_t* x;
  int64_t x_rows, rows;
  float* totals;
  uint8_t (*tiles)[kSlots][kTileBytes];

  [[gnu::always_inline]] uint8_t* slot(int64_t g, int64_t block) { return tiles[g][block % kSlots]; }
  [[gnu::always_inline]] const uint8_t* tile(int64_t g, int64_t block) {
    return kInPlace ? groups[g].codes + block * block_bytes(F) : slot(g, block);
  }

  // Decodes a block of group g, and asks for what comes later: of a group as stored, the one behind it in
  // memory.
  [[gnu::always_inline]] void prepare(int64_t g, int64_t block) {
    const Codes& group = groups[g];
    const uint8_t* scales = group.scales + block * block_scales(F);
    const int64_t offset = block * block_bytes(F);
    if constexpr (kStored) {
      const Words<F, true> words(group.codes + block * 4 * words_of_block(F), row_bytes);
      decode_block(words, scales, group.next + offset, slot(g, block));
    } else {
      const int64_t behind = offset + group.ahead - blocks * block_bytes(F);
      const uint8_t* ask = behind < 0 ? group.codes + offset + group.ahead : group.next + behind;
      decode_block(Words<F, false>{group.codes + offset}, scales, ask, slot(g, block));
    }
  }
};

// Blocks begin.. of R tiles of rows, the last one from row `last` on, and G groups: their totals stay in
// tiles. Two tiles may have rows in common, which then get the same totals twice. Blocks that come kAhead
// later are decoded meanwhile, piece by piece, where `prepares`.
template <int R, int G, class P>
void add_blocks(P& p, int64_t begin, int64_t end, int64_t first, int64_t last, bool prepares) {
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
    if (next) p.prepare(0, b + kAhead);
    load_tile<4>(x + 32 * first);
    load_tile<6>(p.tile(0, b));
    dot_tiles<0, 4, 6>();
    if constexpr (R > 1) {
      load_tile<5>(x + 32 * last);
      dot_tiles<2, 5, 6>();
    }
    if constexpr (G > 1) {
      if (next) p.prepare(1, b + kAhead);
      load_tile<7>(p.tile(1, b));
      dot_tiles<1, 4, 7>();
      if constexpr (R > 1) dot_tiles<3, 5, 7>();
    }
  }
  store_tile<0>(total(0, 0));
  if constexpr (G > 1) store_tile<1>(total(0, 1));
  if constexpr (R > 1) store_tile<2>(total(1, 0));
  if constexpr (R > 1 && G > 1) store_tile<3>(total(1, 1));
}

template <int G, class P>
void add_all(P& p) {
  for (int64_t b = 0; b < p.blocks && b < kAhead; ++b) {
    for (int g = 0; g < G; ++g) p.prepare(g, b);
  }
  if (p.rows <= kTileRows) return add_blocks<1, G>(p, 0, p.blocks, 0, 0, true);
  const int64_t pairs = (p.rows + 2 * kTileRows - 1) / (2 * kTileRows);  // of nearly equal height
  const int64_t step = pairs == 1 ? p.blocks : kAhead;
  for (int64_t begin = 0; begin < p.blocks; begin += step) {
    const int64_t left = p.blocks - begin, end = begin + (left < step ? left : step);
    for (int64_t i = 0; i < pairs; ++i) {
      const int64_t first = p.rows * i / pairs, last = p.rows * (i + 1) / pairs - kTileRows;
      add_blocks<2, G>(p, begin, end, first, last, i == 0);
    }
  }
}

// Totals are added up over the blocks as they are: their scales are in the weights.
template <WeightFormat F, bool kStored>
void add_product(const Codes* groups, int64_t count, int64_t row_bytes, int64_t blocks, const uint16_t* x,
                 int64_t x_rows, int64_t rows, float* totals) {
  if (rows == 0) return;
  const Tiles tiles(rows < kTileRows ? rows : kTileRows);
  alignas(64) uint8_t slots[kTileGroups][kSlots][kTileBytes];
  Product<F, kStored> product{groups, row_bytes, blocks, x, x_rows, rows, totals, slots};
  if (kStored || count == 1) return add_all<1>(product);
  add_all<2>(product);
}

template <bool kStored>
void product_of(WeightFormat format, const Codes* groups, int64_t count, int64_t row_bytes, int64_t blocks,
                const uint16_t* x, int64_t x_rows, int64_t rows, float* totals) {
  const auto run = [&]<WeightFormat F>() {
    add_product<F, kStored>(groups, count, row_bytes, blocks, x, x_rows, rows, totals);
  };
  switch (format) {
    case WeightFormat::bfloat16:
      return run.template operator()<WeightFormat::bfloat16>();
    case WeightFormat::fp8:
      return run.template operator()<WeightFormat::fp8>();
    case WeightFormat::mxfp4:
      return run.template operator()<WeightFormat::mxfp4>();
    case WeightFormat::float32:
      return;  // has no bfloat16 product
  }
}

void narrow(WeightFormat format, const Codes* groups, int64_t count, int64_t blocks, const uint16_t* x,
            int64_t x_rows, int64_t rows, float* totals) {
  product_of<false>(format, groups, count, 0, blocks, x, x_rows, rows, totals);
}

void few_stored(WeightFormat format, const Codes& group, int64_t row_bytes, int64_t blocks, const uint16_t* x,
                int64_t x_rows, int64_t rows, float* totals) {
  product_of<true>(format, &group, 1, row_bytes, blocks, x, x_rows, rows, totals);
}

// As on avx512bf16. Called, not copied: its table is no constant when this one is built.
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
                     .few_stored_rows = kTileRows,
                     .few_stored = few_stored,
                     .store_bf16 = store_bf16,
                     .store_float = store_float};

}  // namespace di::linear_simd::amx
