#include "cpu/moe.hpp"

#include <algorithm>
#include <cmath>
#include <memory>

#include "cpu/formats.hpp"
#include "cpu/linear.hpp"
#include "parallel.hpp"

namespace di {
namespace {

constexpr int64_t kRowBlock = 1024;      // rows whose intermediate values are held at once
constexpr int64_t kActivationTile = 32;  // intermediate channels of one work item: one quantization group

// The (row, slot) pairs of a block of rows, sorted by expert; pairs of expert e are start[e] .. start[e + 1]
// - 1.
struct Grouping {
  std::vector<int64_t> start, pair;

  Grouping(const int32_t* ids, int64_t count, int64_t experts) : start(static_cast<size_t>(experts + 1)) {
    for (int64_t p = 0; p < count; ++p) {
      if (ids[p] >= 0) ++start[ids[p] + 1];
    }
    for (int64_t e = 0; e < experts; ++e) start[e + 1] += start[e];
    pair.resize(static_cast<size_t>(start[experts]));
    std::vector<int64_t> next(start.begin(), start.end() - 1);
    for (int64_t p = 0; p < count; ++p) {
      if (ids[p] >= 0) pair[next[ids[p]]++] = p;
    }
  }

  int64_t count(int64_t expert) const { return start[expert + 1] - start[expert]; }
};

// A tile of output rows of one expert's matrix.
struct WorkItem {
  int64_t expert, begin;
};

std::vector<WorkItem> work_items(const Grouping& groups, int64_t experts, int64_t outputs, int64_t tile) {
  std::vector<WorkItem> items;
  for (int64_t e = 0; e < experts; ++e) {
    if (groups.count(e) == 0) continue;
    for (int64_t begin = 0; begin < outputs; begin += tile) items.push_back({e, begin});
  }
  return items;
}

// What a routed pair contributes before the down projection (4.4, 4.5), before its rounding. Comparisons keep
// a NaN.
float swiglu(float gate, float up, float limit) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  return gate / (1.0f + std::exp(-gate)) * up;
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
        hidden_(new float[groups.pair.size() * static_cast<size_t>(bank.inter)]) {}

  // Fills the activations of all pairs; inputs of pair i start at x[i].
  void gate_and_up(const std::vector<const float*>& x) {
    const auto items = work_items(groups_, bank_.size(), bank_.inter, kActivationTile);
    parallel_for(static_cast<int64_t>(items.size()), 2 * kActivationTile * bank_.dim,
                 [&](int64_t first, int64_t last) {
                   Scratch scratch(bank_.dim, largest_group());
                   for (int64_t i = first; i < last; ++i) activate(items[i], x, scratch);
                 });
  }

  // Writes round(w2 . activation) of pair p to y + p * dim.
  void down(T* y) {
    std::vector<const float*> hidden;
    for (size_t i = 0; i < groups_.pair.size(); ++i) hidden.push_back(hidden_.get() + i * bank_.inter);
    const auto items = work_items(groups_, bank_.size(), bank_.dim, kTileRows);
    parallel_for(static_cast<int64_t>(items.size()), kTileRows * bank_.inter,
                 [&](int64_t first, int64_t last) {
                   Scratch scratch(bank_.inter, largest_group());
                   for (int64_t i = first; i < last; ++i) project_down(items[i], hidden, scratch, y);
                 });
  }

 private:
  struct Scratch {
    std::unique_ptr<float[]> decoded;
    std::vector<float> first, second;

    Scratch(int64_t k, int64_t rows)
        : decoded(new float[static_cast<size_t>(kTileRows * k)]),
          first(static_cast<size_t>(rows * kTileRows)),
          second(static_cast<size_t>(rows * kTileRows)) {}
  };

  int64_t largest_group() const {
    int64_t largest = 0;
    for (int64_t e = 0; e < bank_.size(); ++e) largest = std::max(largest, groups_.count(e));
    return largest;
  }

  void activate(const WorkItem& item, const std::vector<const float*>& x, Scratch& scratch) {
    const int64_t start = groups_.start[item.expert], count = groups_.count(item.expert);
    const int64_t end = std::min(item.begin + kActivationTile, bank_.inter);
    for (int64_t begin = item.begin; begin < end; begin += kTileRows) {
      const int64_t width = std::min(kTileRows, end - begin);
      project_tile(&x[start], count, bank_.w1[item.expert], begin, width, scratch.decoded.get(),
                   scratch.first.data());
      project_tile(&x[start], count, bank_.w3[item.expert], begin, width, scratch.decoded.get(),
                   scratch.second.data());
      for (int64_t r = 0; r < count; ++r) {
        float* hidden = hidden_.get() + (start + r) * bank_.inter + begin;
        for (int64_t j = 0; j < width; ++j) {
          const float gate = rounded<T>(scratch.first[r * kTileRows + j]);
          const float up = rounded<T>(scratch.second[r * kTileRows + j]);
          float value = swiglu(gate, up, limit_);
          if (weights_ != nullptr) value *= weights_[groups_.pair[start + r]];
          hidden[j] = rounded<T>(value);
        }
      }
    }
    if (!quantize_) return;
    for (int64_t r = 0; r < count; ++r) {
      round_trip_fp8(hidden_.get() + (start + r) * bank_.inter + item.begin, end - item.begin);
    }
  }

  void project_down(const WorkItem& item, const std::vector<const float*>& hidden, Scratch& scratch, T* y) {
    const int64_t start = groups_.start[item.expert], count = groups_.count(item.expert);
    const int64_t width = std::min(kTileRows, bank_.dim - item.begin);
    project_tile(&hidden[start], count, bank_.w2[item.expert], item.begin, width, scratch.decoded.get(),
                 scratch.first.data());
    for (int64_t r = 0; r < count; ++r) {
      T* target = y + groups_.pair[start + r] * bank_.dim + item.begin;
      for (int64_t j = 0; j < width; ++j) target[j] = from_float<T>(scratch.first[r * kTileRows + j]);
    }
  }

  const ExpertBank& bank_;
  const Grouping& groups_;
  const float* weights_;
  float limit_;
  bool quantize_;
  std::unique_ptr<float[]> hidden_;  // [pairs, inter], in the order of the grouping
};

}  // namespace

template <class T>
void run_experts(const ExpertBank& bank, const T* x, const int32_t* ids, const float* weights, int64_t rows,
                 int64_t slots, float limit, bool quantize_input, T* y) {
  for (int64_t r = 0; r < rows * slots; ++r) {
    if (ids[r] < 0) std::fill_n(y + r * bank.dim, bank.dim, from_float<T>(0.0f));
  }
  for (int64_t begin = 0; begin < rows; begin += kRowBlock) {
    const int64_t count = std::min(kRowBlock, rows - begin), offset = begin * slots;
    const Grouping groups(ids + offset, count * slots, bank.size());
    if (groups.pair.empty()) continue;
    const InputRows inputs(x + begin * bank.dim, count, bank.dim, quantize_input);
    std::vector<const float*> gathered;
    for (const int64_t pair : groups.pair) gathered.push_back(inputs.row(pair / slots));
    ExpertPass<T> pass(bank, groups, weights == nullptr ? nullptr : weights + offset, limit, quantize_input);
    pass.gate_and_up(gathered);
    pass.down(y + offset * bank.dim);
  }
}

template void run_experts<float>(const ExpertBank&, const float*, const int32_t*, const float*, int64_t,
                                 int64_t, float, bool, float*);
template void run_experts<bf16>(const ExpertBank&, const bf16*, const int32_t*, const float*, int64_t,
                                int64_t, float, bool, bf16*);

}  // namespace di
