#include "simd/linear.hpp"

#include "amx/one_row.hpp"
#include "amx/tiles.hpp"
#include "amx/weights.hpp"

namespace di::linear_simd::amx {
namespace {

using namespace simd::amx;
using namespace ::di::amx;

// So many blocks before the rows meet it a block is decoded: its tile is read from the first cache, and not
// sooner than it has arrived there. Up to kFewRows rows their totals stay in tiles.
constexpr int64_t kFewRows = 2 * kTileRows, kFewAhead = 2, kManyAhead = 8;
constexpr int64_t kSoon = 512;  // bytes from what is decoded to what comes to the first cache meanwhile
constexpr int64_t kDecodedFirst = 128;  // for more rows, blocks are decoded before these meet any of them

// One or two groups, packed or one as stored, their inputs, and the tiles of the blocks at hand.
template <WeightFormat F, bool kStored, bool kMany>
struct Product {
  static constexpr int64_t kAhead = kMany ? kManyAhead : kFewAhead, kSlots = 2 * kAhead;
  static constexpr bool kInPlace = F == WeightFormat::bfloat16 && !kStored;  // tiles are read where they lie

  const Codes* groups;
  int64_t row_bytes, blocks;
  const uint16_t* x;
  int64_t x_rows, rows;
  float* totals;
  uint8_t (*tiles)[kSlots][kTileBytes];

  [[gnu::always_inline]] uint8_t* slot(int64_t g, int64_t block) const { return tiles[g][block % kSlots]; }
  [[gnu::always_inline]] const uint8_t* tile(int64_t g, int64_t block) const {
    return kInPlace ? groups[g].codes + block * block_bytes(F) : slot(g, block);
  }

  // Decodes a block of group g, and asks for what comes later.
  [[gnu::always_inline]] void prepare(int64_t g, int64_t block) const {
    const Codes& group = groups[g];
    const uint8_t* scales = group.scales + block * block_scales(F);
    if constexpr (kStored) {
      const Words<F, true> words(group.codes + block * 4 * words_of_block(F), row_bytes);
      decode_block(words, scales, ask_stored<F>(group, row_bytes, block), slot(g, block));
    } else {
      const Words<F, false> words{group.codes + block * block_bytes(F)};
      decode_block(words, scales, ask_packed(group, block), slot(g, block));
    }
  }

  // MXFP4 comes to the second cache, and from there to the first one soon before it is used (ask_stored tells
  // why); FP8 and bfloat16 gain nothing from that, but 5 % from coming straight to the first one where few
  // rows leave them room in it.
  [[gnu::always_inline]] auto ask_packed(const Codes& group, int64_t block) const {
    const int64_t offset = block * block_bytes(F), behind = offset + group.ahead - blocks * block_bytes(F);
    const uint8_t* const later = behind < 0 ? group.codes + offset + group.ahead : group.next + behind;
    const uint8_t* const soon = group.codes + offset + kSoon;
    return [=](int w) __attribute__((always_inline)) {
      if constexpr (F == WeightFormat::mxfp4) {
        ask_for_second_cache(later + 64 * w);
        ask_for_first_cache(soon + 64 * w);
      } else if constexpr (kMany) {
        ask_for_second_cache(later + 64 * w);
      } else {
        ask_for_first_cache(later + 64 * w);
      }
    };
  }

  // Those of G groups.
  template <int G>
  [[gnu::always_inline]] void prepare_blocks(int64_t begin, int64_t end) const {
    for (int64_t b = begin; b < end && b < blocks; ++b) {
      for (int g = 0; g < G; ++g) prepare(g, b);
    }
  }
};

// The tile of rows from `first` on and the one up to row `last`, or one alone. They may have rows in common,
// which then get the same totals twice.
struct RowTiles {
  int64_t first, last;
};

template <class P>
DI_INLINE float* totals_of(const P& p, const RowTiles& rows, int r, int g) {
  return p.totals + 16 * (g * p.rows + (r == 0 ? rows.first : rows.last));
}

// Totals leave a tile for those of other rows just before the first dot that needs it: a store waits for the
// last dot of its tile, and holds up all dots behind it meanwhile.
template <int Sum, class P>
DI_INLINE void enter(const P& p, const RowTiles* before, const RowTiles& rows, int r, int g) {
  if (before != nullptr) store_tile<Sum>(totals_of(p, *before, r, g));
  load_tile<Sum>(totals_of(p, rows, r, g));
}

template <int R, int G, class P>
DI_INLINE void leave(const P& p, const RowTiles& rows) {
  store_tile<0>(totals_of(p, rows, 0, 0));
  if constexpr (G > 1) store_tile<1>(totals_of(p, rows, 0, 1));
  if constexpr (R > 1) store_tile<2>(totals_of(p, rows, 1, 0));
  if constexpr (R > 1 && G > 1) store_tile<3>(totals_of(p, rows, 1, 1));
}

// Block b of R tiles of rows and G groups; where it `enters`, their totals take the place of those of
// `before`. prepare(g) is called where it does not hold up the dots.
template <int R, int G, class P, class Prepare>
DI_INLINE void add_block(const P& p, int64_t b, const RowTiles& rows, bool enters, const RowTiles* before,
                         const Prepare& prepare) {
  const uint16_t* x = p.x + 32 * p.x_rows * b;
  prepare(0);
  if (enters) enter<0>(p, before, rows, 0, 0);
  load_tile_once<4>(x + 32 * rows.first);
  load_tile<6>(p.tile(0, b));
  dot_tiles<0, 4, 6>();
  if constexpr (R > 1) {
    if (enters) enter<2>(p, before, rows, 1, 0);
    load_tile_once<5>(x + 32 * rows.last);
    dot_tiles<2, 5, 6>();
  }
  if constexpr (G > 1) {
    prepare(1);
    if (enters) enter<1>(p, before, rows, 0, 1);
    load_tile<7>(p.tile(1, b));
    dot_tiles<1, 4, 7>();
    if constexpr (R > 1) {
      if (enters) enter<3>(p, before, rows, 1, 1);
      dot_tiles<3, 5, 7>();
    }
  }
}

// All blocks of rows whose totals stay in tiles.
template <int R, int G, class P>
void add_few_rows(const P& p) {
  p.template prepare_blocks<G>(0, P::kAhead);
  const RowTiles rows{0, p.rows - kTileRows};
  for (int64_t b = 0; b < p.blocks; ++b) {
    add_block<R, G>(p, b, rows, b == 0, nullptr, [&](int g) __attribute__((always_inline)) {
      if (b + P::kAhead < p.blocks) p.prepare(g, b + P::kAhead);
    });
  }
  leave<R, G>(p, rows);
}

// Tiles of the blocks from `first` on.
struct Work {
  int64_t first, tiles;
};

// What is prepared beside the dots of blocks begin..end-1: the blocks that follow, or what is asked for with
// these where nothing is decoded, or nothing.
template <int G, class P>
Work work_beside(const P& p, int64_t begin, int64_t end, int64_t ahead) {
  if (P::kInPlace) return {begin, G * (end - begin)};
  const int64_t rest = p.blocks - end;
  return {end, G * (rest < ahead ? rest : ahead)};
}

// Two or more pairs of tiles of rows, of nearly equal height, take turns every `step` blocks and share out
// what is prepared: beside dots it costs little as long as there are enough of them. Where there are plenty,
// blocks are decoded before, which leaves room for twice as many of them in a step.
template <int G, class P>
void add_many_rows(const P& p) {
  const int64_t pairs = (p.rows + 2 * kTileRows - 1) / (2 * kTileRows);
  const int64_t ahead = P::kInPlace || p.rows > kDecodedFirst ? 0 : P::kAhead;
  const int64_t step = ahead == 0 ? P::kSlots : ahead;
  LaterLines later = p.groups->later;
  RowTiles before{};
  p.template prepare_blocks<G>(0, ahead);
  for (int64_t begin = 0; begin < p.blocks; begin += step) {
    const int64_t end = begin + step < p.blocks ? begin + step : p.blocks;
    const Work work = work_beside<G>(p, begin, end, ahead);
    if (ahead == 0 && !P::kInPlace) p.template prepare_blocks<G>(begin, end);
    for (int64_t i = 0; i < pairs; ++i) {
      const RowTiles rows{p.rows * i / pairs, p.rows * (i + 1) / pairs - kTileRows};
      const RowTiles* leaving = begin + i == 0 ? nullptr : &before;
      int64_t tile = work.tiles * i / pairs;
      const int64_t last = work.tiles * (i + 1) / pairs;
      for (int64_t b = begin; b < end; ++b) {
        ask_next(later);
        ask_next(later);
        add_block<2, G>(p, b, rows, b == begin, leaving, [&](int g) __attribute__((always_inline)) {
          if (g == 0 && tile < last) p.prepare(tile % G, work.first + tile / G);
        });
        ++tile;
      }
      before = rows;
    }
  }
  leave<2, G>(p, before);
}

// Totals are added up over the blocks as they are: their scales are in the weights.
template <int G, bool kMany, class P>
void add_product(const P& p) {
  if constexpr (kMany) {
    add_many_rows<G>(p);
  } else if (p.rows <= kTileRows) {
    add_few_rows<1, G>(p);
  } else {
    add_few_rows<2, G>(p);
  }
}

template <WeightFormat F, bool kStored, bool kMany>
void add_groups(const Codes* groups, int64_t count, int64_t row_bytes, int64_t blocks, const uint16_t* x,
                int64_t x_rows, int64_t rows, float* totals) {
  using P = Product<F, kStored, kMany>;
  configure_tiles(rows < kTileRows ? rows : kTileRows);
  alignas(64) uint8_t slots[kTileGroups][P::kSlots][kTileBytes];
  const P product{groups, row_bytes, blocks, x, x_rows, rows, totals, slots};
  if (kStored || count == 1) return add_product<1, kMany>(product);
  add_product<2, kMany>(product);
}

template <bool kStored>
void product_of(WeightFormat format, const Codes* groups, int64_t count, int64_t row_bytes, int64_t blocks,
                const uint16_t* x, int64_t x_rows, int64_t rows, float* totals) {
  if (rows == 0 || blocks == 0) return;
  of_narrow_format(format, [&]<WeightFormat F>() {
    if (kStored || rows <= kFewRows) {
      return add_groups<F, kStored, false>(groups, count, row_bytes, blocks, x, x_rows, rows, totals);
    }
    add_groups<F, kStored, !kStored>(groups, count, row_bytes, blocks, x, x_rows, rows, totals);
  });
}

void narrow(WeightFormat format, const Codes* groups, int64_t count, int64_t blocks, const uint16_t* x,
            int64_t x_rows, int64_t rows, float* totals) {
  product_of<false>(format, groups, count, 0, blocks, x, x_rows, rows, totals);
}

void few_stored(WeightFormat format, const Codes& group, int64_t row_bytes, int64_t blocks, const uint16_t* x,
                int64_t x_rows, int64_t rows, float* totals) {
  product_of<true>(format, &group, 1, row_bytes, blocks, x, x_rows, rows, totals);
}

void one_row(WeightFormat format, const uint8_t* group, int64_t groups, int64_t blocks, const OneRow& row,
             float* totals) {
  of_narrow_format(format, [&]<WeightFormat F>() { add_packed<F>(group, groups, blocks, row, totals); });
}

void one_stored_row(WeightFormat format, const Codes& group, int64_t row_bytes, int64_t blocks,
                    const OneRow& row, float* totals) {
  of_narrow_format(format, [&]<WeightFormat F>() { add_stored<F>(group, row_bytes, blocks, row, totals); });
}

// What is as on avx512bf16 is called, not copied: its table is no constant when this one is built.
constexpr Table kTable = {.row_block = 256,
                          .input_bytes = 1 << 20,
                          .part_bytes = 1 << 18,
                          .total_bytes = 3 << 18,
                          .narrow = narrow,
                          .wide = [](auto... a) { avx512bf16::table.wide(a...); },
                          .lane_rows = 0,
                          .few_stored_rows = kTileRows,
                          .few_stored = few_stored,
                          .widen_row = widen_row,
                          .one_row = one_row,
                          .one_stored_row = one_stored_row,
                          .store_bf16 = [](auto... a) { avx512bf16::table.store_bf16(a...); },
                          .store_float = [](auto... a) { avx512bf16::table.store_float(a...); }};

}  // namespace

const Table table = kTable;

}  // namespace di::linear_simd::amx
