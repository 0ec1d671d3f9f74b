#include "cpu/moe.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/formats.hpp"
#include "cpu/linear.hpp"
#include "parallel.hpp"
#include "simd/linear.hpp"
#include "simd/moe.hpp"

namespace di {
namespace {

using linear_simd::kTileGroups;

static_assert(kTileGroups * kGroupRows == kBlock);  // a block of channels is a tile

constexpr int64_t kRunRows = 64;     // times tiles that are computed in one run: the longer the better memory
                                     // reads, but what is computed stays in the first caches
constexpr int64_t kRowBlock = 1024;  // rows whose intermediate values are held at once

// The (row, slot) pairs of a block of rows, sorted by expert. Pairs of the i-th expert that has any are those
// from start[i] to start[i + 1] - 1. An object is used again and again.
struct Grouping {
  std::vector<int64_t> expert, start, pair;

  void assign(const int32_t* ids, int64_t count, int64_t experts) {
    next_.assign(static_cast<size_t>(experts + 1), 0);
    for (int64_t p = 0; p < count; ++p) {
      if (ids[p] >= 0) ++next_[ids[p] + 1];
    }
    expert.clear();
    start.assign(1, 0);
    for (int64_t e = 0; e < experts; ++e) {
      if (next_[e + 1] > 0) {
        expert.push_back(e);
        start.push_back(start.back() + next_[e + 1]);
      }
      next_[e + 1] += next_[e];
    }
    pair.resize(static_cast<size_t>(start.back()));
    for (int64_t p = 0; p < count; ++p) {
      if (ids[p] >= 0) pair[next_[ids[p]]++] = p;
    }
  }

  int64_t size() const { return static_cast<int64_t>(expert.size()); }
  int64_t count(int64_t i) const { return start[i + 1] - start[i]; }

 private:
  std::vector<int64_t> next_;
};

// Calls body(i, tile, count) for runs of the `tiles` tiles of each group, shared out by cost: reading the
// weights takes as long as about four rows. Runs of group i have at least run(i) tiles, where so many are
// left.
template <class Run, class Body>
void for_tiles(const Grouping& groups, int64_t tiles, int64_t tile_cost, const Run& run, const Body& body) {
  const auto units = [&](int64_t i) { return std::max<int64_t>(4, groups.count(i)); };
  int64_t total = 0;
  for (int64_t i = 0; i < groups.size(); ++i) total += tiles * units(i);
  parallel_for(total, tile_cost, [&](int64_t first, int64_t last) {
    int64_t at = 0;  // of the units before tile t of group i
    for (int64_t i = 0; i < groups.size() && at < last; at += tiles * units(i), ++i) {
      const int64_t unit = units(i);
      const auto tile_from = [&](int64_t u) {
        return std::clamp<int64_t>((u - at + unit - 1) / unit, 0, tiles);
      };
      if (first >= at + tiles * unit) continue;
      const int64_t from = tile_from(first), to = tile_from(last);
      const int64_t step = std::max(run(i), kRunRows / groups.count(i));
      for (int64_t t = from; t < to; t += step) body(i, t, std::min(step, to - t));
    }
  });
}

// Asks for `count` elements that store_totals() will write. A store waits for a line that is far off, and all
// loads behind it wait meanwhile whose addresses have the same low twelve bits.
template <class T>
[[gnu::always_inline]] void ask_for_output(const T* y, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(y + i, 1, 2);
}

// One block of rows through the experts: gate and up with the activation, then down.
template <class T>
class ExpertPass {
 public:
  ExpertPass(const ExpertBank& bank, const Grouping& groups, const float* weights, float limit, bool quantize)
      : bank_(bank),
        groups_(groups),
        weights_(weights),
        limit_(limit),
        quantize_(quantize),
        wide_in_(is_wide<T>(bank.w1[0], quantize)),
        wide_hidden_(is_wide<T>(bank.w2[0], quantize)),
        inputs_(of_thread().inputs),
        hidden_(of_thread().hidden) {}

  // Inputs of every group in blocks; `rows` rows x, pair p is of row p / slots.
  void gather(const T* x, int64_t rows, int64_t slots) {
    thread_local Buffer row_buffer, block_buffer;
    const int64_t padded = blocks_of(bank_.dim) * kBlock, element = wide_in_ ? 4 : 2;
    auto* row = row_buffer.reserve<uint8_t>(rows * padded * element);
    parallel_for(rows, (quantize_ ? kPerElement : kPerElement / 4) * padded,
                 [&](int64_t first, int64_t last) {
                   for (int64_t r = first; r < last; ++r) {
                     put_rows(x + r * bank_.dim, 0, 1, bank_.dim, quantize_, wide_in_, 0, 1,
                              row + r * padded * element);
                   }
                 });
    auto* blocks =
        block_buffer.reserve<uint8_t>(static_cast<int64_t>(groups_.pair.size()) * padded * element);
    inputs_.resize(static_cast<size_t>(groups_.size()));
    const int64_t pairs = static_cast<int64_t>(groups_.pair.size());
    const int64_t cost = kPerElement * padded * pairs / groups_.size();
    parallel_for_uneven(groups_.size(), cost, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t count = groups_.count(i), start = groups_.start[i];
        uint8_t* target = blocks + start * padded * element;
        for (int64_t r = 0; r < count; ++r) {
          const uint8_t* source = row + groups_.pair[start + r] / slots * padded * element;
          if (count == 1) {
            target = const_cast<uint8_t*>(source);  // a single row is in blocks as it is
          } else if (wide_in_) {
            put_rows(reinterpret_cast<const float*>(source), 0, 1, padded, false, true, r, count, target);
          } else {
            put_rows(reinterpret_cast<const bf16*>(source), 0, 1, padded, false, false, r, count, target);
          }
        }
        inputs_[i] = {target, count, wide_in_};
      }
    });
    put_lanes(bank_.w1[0], of_thread().input_lanes, inputs_);
  }

  // Fills the activations of all pairs.
  void gate_and_up() {
    const int64_t tiles = blocks_of(bank_.inter), row_bytes = tiles * kBlock * (wide_hidden_ ? 4 : 2);
    auto* all = of_thread().activations.template reserve<uint8_t>(groups_.start.back() * row_bytes);
    hidden_.resize(static_cast<size_t>(groups_.size()));
    for (int64_t i = 0; i < groups_.size(); ++i) {
      hidden_[i] = {all + groups_.start[i] * row_bytes, groups_.count(i), wide_hidden_};
    }
    for_tiles(
        groups_, tiles, 2 * kBlock * bank_.dim, [&](int64_t i) { return run_of(bank_.w1[0], inputs_[i]); },
        [&](int64_t i, int64_t t, int64_t blocks) { activate(i, t, blocks); });
    put_lanes(bank_.w2[0], of_thread().hidden_lanes, hidden_);
  }

  // Writes round(w2 . activation) of pair p to y + p * dim.
  void down(T* y) {
    for_tiles(
        groups_, blocks_of(bank_.dim), kBlock * bank_.inter,
        [&](int64_t i) { return run_of(bank_.w2[0], hidden_[i]); },
        [&](int64_t i, int64_t t, int64_t blocks) { project_down(i, t, blocks, y); });
  }

 private:
  static int64_t run_of(const Weight& weight, const BlockedRows& x) {
    return groups_at_once(weight, x) / kTileGroups;
  }

  // What a thread keeps from call to call.
  struct Rooms {
    std::vector<BlockedRows> inputs, hidden;
    Buffer activations, input_lanes, hidden_lanes;
  };
  static Rooms& of_thread() {
    thread_local Rooms rooms;
    return rooms;
  }

  // Adds the lanes of the rows of each group, where weights like this one have a use for them.
  void put_lanes(const Weight& weight, Buffer& buffer, std::vector<BlockedRows>& rows) const {
    const int64_t most = lane_rows(weight, rows[0].wide);  // once: another thread may choose another set
    const auto size = [&](const BlockedRows& of) {
      return of.rows <= most ? lanes_size(weight.k, of.rows) : 0;
    };
    int64_t all = 0;
    for (const BlockedRows& of : rows) all += size(of);
    auto* out = buffer.reserve<uint32_t>(all);
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t room = size(rows[i]);
      if (room == 0) continue;
      if (i > 0 && rows[i].data == rows[i - 1].data && rows[i - 1].lanes != nullptr) {
        rows[i].lanes = rows[i - 1].lanes;  // the same single row
      } else {
        add_lanes(weight.k, out, rows[i]);
        out += room;
      }
    }
  }

  // Blocks t..t+blocks-1 of the activations of group i: 32 channels each, which are one quantization group.
  void activate(int64_t i, int64_t t, int64_t blocks) {
    thread_local Buffer buffer;
    const int64_t expert = groups_.expert[i], count = groups_.count(i), group = t * kTileGroups;
    const int64_t groups = std::min(blocks * kTileGroups, groups_of(bank_.inter) - group);
    float* gate = buffer.reserve<float>(2 * groups * count * kGroupRows);
    float* up = gate + groups * count * kGroupRows;
    multiply(bank_.w1[expert], group, groups, inputs_[i], gate);
    multiply(bank_.w3[expert], group, groups, inputs_[i], up);
    for (int64_t g = 0; g < groups; g += kTileGroups) {
      const int64_t at = g * count * kGroupRows, parts = std::min(kTileGroups, groups - g);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t row = at + r * kGroupRows;
        activate_row(i, t + g / kTileGroups, r, gate + row, up + row, parts);
      }
    }
  }

  // One row of block t, from `parts` groups of the sums, whose rows of one group lie side by side.
  void activate_row(int64_t i, int64_t t, int64_t r, const float* gate, const float* up, int64_t parts) {
    const float weight = weights_ == nullptr ? 1.0f : weights_[groups_.pair[groups_.start[i] + r]];
    const int64_t width = std::min(kBlock, bank_.inter - t * kBlock);
    float value[kBlock];
    for (int64_t g = 0; g < parts; ++g) {
      const int64_t at = g * groups_.count(i) * kGroupRows;
      moe_simd::active().swiglu(gate + at, up + at, limit_, weight, sizeof(T) == 2, value + g * kGroupRows);
    }
    std::fill(value + width, value + kBlock, 0.0f);
    if (quantize_) round_trip_fp8(value, kBlock);
    put_hidden(i, t, r, value);
  }

  void put_hidden(int64_t i, int64_t t, int64_t r, const float* value) {
    const BlockedRows& all = hidden_[i];
    const int64_t at = (t * all.rows + r) * kBlock;
    auto* data = const_cast<void*>(all.data);
    if (wide_hidden_) {
      std::copy_n(value, kBlock, static_cast<float*>(data) + at);
    } else {
      narrow(value, kBlock, static_cast<bf16*>(data) + at);
    }
  }

  void project_down(int64_t i, int64_t t, int64_t blocks, T* y) {
    thread_local Buffer buffer;
    const int64_t count = groups_.count(i), group = t * kTileGroups, stride = count * kGroupRows;
    const int64_t groups = std::min(blocks * kTileGroups, groups_of(bank_.dim) - group);
    const int64_t channel = group * kGroupRows, whole = std::min(groups, bank_.dim / kGroupRows - group);
    float* totals = buffer.reserve<float>(groups * stride);
    const auto target_of = [&](int64_t r) {
      return y + groups_.pair[groups_.start[i] + r] * bank_.dim + channel;
    };
    for (int64_t r = 0; r < count; ++r) ask_for_output(target_of(r), whole * kGroupRows);
    multiply(bank_.w2[groups_.expert[i]], group, groups, hidden_[i], totals);
    for (int64_t r = 0; r < count; ++r) {
      const float* row = totals + r * kGroupRows;
      T* const target = target_of(r);
      store_totals(row, stride, whole, kGroupRows, target, kGroupRows);
      if (whole == groups) continue;
      store_totals(row + whole * stride, 0, 1, bank_.dim % kGroupRows, target + whole * kGroupRows, 0);
    }
  }

  const ExpertBank& bank_;
  const Grouping& groups_;
  const float* weights_;
  float limit_;
  bool quantize_, wide_in_, wide_hidden_;
  std::vector<BlockedRows>&inputs_, &hidden_;  // inputs and activations of each group
};

}  // namespace

template <class T>
void run_experts(const ExpertBank& bank, const T* x, const int32_t* ids, const float* weights, int64_t rows,
                 int64_t slots, float limit, bool quantize_input, T* y) {
  for (int64_t r = 0; r < rows * slots; ++r) {
    if (ids[r] < 0) std::fill_n(y + r * bank.dim, bank.dim, from_float<T>(0.0f));
  }
  thread_local Grouping groups;
  for (int64_t begin = 0; begin < rows; begin += kRowBlock) {
    const int64_t count = std::min(kRowBlock, rows - begin), offset = begin * slots;
    groups.assign(ids + offset, count * slots, bank.size());
    if (groups.pair.empty()) continue;
    ExpertPass<T> pass(bank, groups, weights == nullptr ? nullptr : weights + offset, limit, quantize_input);
    pass.gather(x + begin * bank.dim, count, slots);
    pass.gate_and_up();
    pass.down(y + offset * bank.dim);
  }
}

template void run_experts<float>(const ExpertBank&, const float*, const int32_t*, const float*, int64_t,
                                 int64_t, float, bool, float*);
template void run_experts<bf16>(const ExpertBank&, const bf16*, const int32_t*, const float*, int64_t,
                                int64_t, float, bool, bf16*);

}  // namespace di
