#include "cpu/sampling.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "cpu/philox.hpp"
#include "cpu/topk.hpp"
#include "parallel.hpp"
#include "simd/sampling.hpp"

namespace di {
namespace {

using sampling_simd::Bucket;
using sampling_simd::Cut;
using sampling_simd::kBlock;
using sampling_simd::kBuckets;
using sampling_simd::Peak;
using sampling_simd::Table;

constexpr int64_t kFresh = 0;  // DrawPurpose.FRESH
constexpr double kGreedyTemperature = 1e-5;
constexpr double kOne = 2147483648.0;  // of a weight: 2^31
constexpr int kNearBuckets = 256;      // few columns are in them, which mostly are enough

constexpr double kLn2High = 0x1.62e42fee00000p-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

// ln of x >= 1 by the series of atanh.
double log_of_sum(double x) {
  constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1;
  int exponent;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < kSqrtHalf) {
    mantissa *= 2.0;
    exponent -= 1;
  }
  const double f = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = f * f;
  double y = 1.0 / 23;
  for (int k = 10; k >= 0; --k) y = y * square + 1.0 / (2 * k + 1);
  return exponent * kLn2High + ((2.0 * f) * y + exponent * kLn2Low);
}

// Rows of a call, on as many threads as they are worth.
template <class Body>
void for_rows(int64_t count, int64_t columns, const Body& body) {
  parallel_for(count, 8 * columns, [&](int64_t begin, int64_t end) {
    const Table& simd = sampling_simd::active();
    for (int64_t r = begin; r < end; ++r) body(simd, r);
  });
}

// What a log-probability subtracts from a logit; NaN when the row has no distribution.
struct Normaliser {
  float top;
  double log_sum;

  Normaliser(const Table& simd, const float* x, int64_t n) : top(simd.peak(x, n).logit), log_sum(0) {
    if (top == top) log_sum = log_of_sum(simd.sum_exp(x, n, top));
  }
  float logprob(float x) const {
    return static_cast<float>((static_cast<double>(x) - static_cast<double>(top)) - log_sum);
  }
};

// Larger key, better rank: logit first (-0 equals +0, NaN counts as -inf), then the lower column.
uint64_t rank_key(float x, int64_t column) {
  const uint32_t bits = std::bit_cast<uint32_t>(x == x ? x + 0.0f : -std::numeric_limits<float>::infinity());
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (0xffffffffu - static_cast<uint32_t>(column));
}

int64_t column_of(uint64_t key) { return 0xffffffffu - static_cast<uint32_t>(key); }

// The k best columns of a row and their log-probabilities.
void best_columns(const float* x, int64_t n, int64_t k, const Normaliser& normaliser, int64_t* ids,
                  float* logprobs) {
  if (k == 0) return;
  static thread_local TopK work;
  static thread_local std::vector<int32_t> best;
  static thread_local std::vector<uint64_t> keys;
  best.resize(static_cast<size_t>(k));
  select_largest(x, n, k, work, best.data());
  keys.clear();
  for (const int32_t column : best) keys.push_back(rank_key(x[column], column));
  std::sort(keys.begin(), keys.end(), std::greater<>());
  for (int64_t i = 0; i < k; ++i) {
    ids[i] = column_of(keys[i]);
    logprobs[i] = normaliser.logprob(x[ids[i]]);
  }
}

// Draws from one row after another; holds the working memory, about 5 bytes a column.
class RowSampler {
 public:
  // `top` is the largest logit.
  int64_t draw(const Table& simd, const float* x, int64_t n, float top, const SamplingParameters& p,
               Philox stream) {
    simd_ = &simd;
    x_ = x;
    n_ = n;
    top_ = top;
    // No logit may be multiplied by 0: -inf would become NaN.
    scale_ = std::max(static_cast<float>(1.0 / p.temperature), std::numeric_limits<float>::min());
    lines_.resize(static_cast<size_t>((n + 15) / 16));
    weights_ = lines_.front().weights;
    sums_.resize(static_cast<size_t>((n + kBlock - 1) / kBlock));
    simd_->weigh(x, n, top, scale_, weights_, sums_.data());
    filter(p);
    return pick(stream);
  }

 private:
  uint64_t mass() const { return std::accumulate(sums_.begin(), sums_.end(), uint64_t{0}); }

  void filter(const SamplingParameters& p) {
    // All of them, unless a filter says otherwise.
    Cut cut = {-std::numeric_limits<float>::infinity(), static_cast<int32_t>(n_),
               static_cast<uint32_t>(std::ceil(p.min_p * kOne))};
    const bool limits_count = p.top_k >= 1 && p.top_k < n_, limits_mass = p.top_p < 1.0;
    if (limits_count || limits_mass) {
      const uint64_t all = mass();
      const double enough = std::ceil(p.top_p * static_cast<double>(all));
      rank_until(limits_count ? static_cast<uint64_t>(p.top_k) : static_cast<uint64_t>(n_),
                 limits_mass ? std::min(static_cast<uint64_t>(enough), all) : all, cut);
    }
    if (limits_count || limits_mass || cut.least_weight > 0) {
      simd_->keep(x_, n_, cut, weights_, sums_.data());
    }
  }

  // How many columns, in rank order, stay: until there are `limit` or their mass is `enough`.
  struct Goal {
    uint64_t limit, enough;
    Bucket taken = {0, 0};  // what surely stays

    bool suffices(const Bucket& more) const {
      return taken.count + more.count >= limit || taken.mass + more.mass >= enough;
    }
    void take(const Bucket& more) {
      taken.mass += more.mass;
      taken.count += more.count;
    }
    // How many of columns with one logit stay, with which there are enough.
    uint64_t missing(uint64_t weight) const {
      const uint64_t by_count = limit - taken.count;
      return weight > 0 ? std::min(by_count, (enough - taken.mass + weight - 1) / weight) : by_count;
    }
  };

  // Cuts behind the first column with which the goal is met.
  void rank_until(uint64_t limit, uint64_t enough, Cut& cut) {
    Goal goal{limit, enough};
    const int bucket = last_bucket(goal);
    if (bucket == kBuckets) return;  // what lies below has no weight
    list_members(bucket);
    cut_members(goal, cut);
  }

  // The bucket with which the goal is met, after those before it were taken.
  int last_bucket(Goal& goal) {
    buckets_.resize(kBuckets);
    const auto count = [&](int first, int end) {
      simd_->count(x_, weights_, n_, top_, scale_, first, end, buckets_.data());
    };
    count(0, kNearBuckets);
    for (int b = 0; b < kBuckets; ++b) {
      if (b == kNearBuckets) count(kNearBuckets, kBuckets);
      if (goal.suffices(buckets_[b])) return b;
      goal.take(buckets_[b]);
    }
    return kBuckets;
  }

  // A logit among those left parts the members, until it is the one with which the goal is met.
  void cut_members(Goal& goal, Cut& cut) {
    auto first = members_.begin(), last = members_.end();
    for (;;) {
      const float pivot = first[(last - first) / 2].logit;
      const auto same = std::partition(first, last, [=](const Member& m) { return m.logit > pivot; });
      const auto worse = std::partition(same, last, [=](const Member& m) { return m.logit == pivot; });
      const Bucket better = total(first, same), ties = total(same, worse);
      if (goal.suffices(better)) {
        last = same;
        continue;
      }
      goal.take(better);
      if (goal.suffices(ties)) {
        cut.logit = pivot;
        cut.column = nth_tie(pivot, goal.missing(same->weight));
        return;
      }
      goal.take(ties);
      first = worse;
    }
  }

  struct Member {
    float logit;
    uint32_t weight;
  };
  using Members = std::vector<Member>;

  void list_members(int bucket) {
    columns_.resize(buckets_[bucket].count);
    simd_->members(x_, n_, top_, scale_, bucket, columns_.data());
    members_.clear();
    for (const int32_t c : columns_) members_.push_back({x_[c], weights_[c]});
  }

  static Bucket total(Members::const_iterator first, Members::const_iterator last) {
    Bucket sum = {0, static_cast<uint64_t>(last - first)};
    for (; first != last; ++first) sum.mass += first->weight;
    return sum;
  }

  // The n-th column, from 1, of those that have this logit.
  int32_t nth_tie(float logit, uint64_t n) const {
    for (const int32_t c : columns_) {
      if (x_[c] == logit && --n == 0) return c;
    }
    return columns_.back();
  }

  // Inverse of the cumulative distribution, columns in ascending order. The place is a share of the total, so
  // that it moves little when the total does.
  int64_t pick(Philox stream) const {
    __extension__ using uint128 = unsigned __int128;
    const uint64_t total = mass();
    const uint64_t uneven = (0 - total) % total;  // 2^64 mod total
    uint128 product;
    do {
      const uint64_t high = stream.next();
      product = uint128{high << 32 | stream.next()} * total;
    } while (static_cast<uint64_t>(product) < uneven);
    auto value = static_cast<uint64_t>(product >> 64);
    size_t block = 0;
    while (value >= sums_[block]) value -= sums_[block++];
    int64_t column = static_cast<int64_t>(block) * kBlock;
    while (value >= weights_[column]) value -= weights_[column++];
    return column;
  }

  const Table* simd_ = nullptr;
  const float* x_ = nullptr;
  int64_t n_ = 0;
  float top_ = 0, scale_ = 0;
  struct alignas(64) Line {  // of the cache
    uint32_t weights[16];
  };
  std::vector<Line> lines_;
  uint32_t* weights_ = nullptr;
  std::vector<uint64_t> sums_;
  std::vector<Bucket> buckets_;
  std::vector<int32_t> columns_;
  Members members_;
};

}  // namespace

void philox(const int64_t* seeds, const int64_t* positions, int64_t purpose, Rows<int64_t> out) {
  for (int64_t r = 0; r < out.count; ++r) {
    Philox stream(static_cast<uint64_t>(seeds[r]), positions[r], purpose);
    for (int64_t i = 0; i < out.columns; ++i) out[r][i] = stream.next();
  }
}

void all_finite(Logits logits, bool* out) {
  for_rows(logits.count, logits.columns,
           [&](const Table& simd, int64_t r) { out[r] = simd.peak(logits[r], logits.columns).finite; });
}

void argmax(Logits logits, int64_t* out) {
  for_rows(logits.count, logits.columns,
           [&](const Table& simd, int64_t r) { out[r] = simd.peak(logits[r], logits.columns).column; });
}

void log_softmax(Logits logits, Rows<float> out) {
  for_rows(logits.count, logits.columns, [&](const Table& simd, int64_t r) {
    const Normaliser normaliser(simd, logits[r], logits.columns);
    simd.log_softmax(logits[r], logits.columns, normaliser.top, normaliser.log_sum, out[r]);
  });
}

void describe_tokens(Logits logits, const int64_t* ids, TokenDescriptions out) {
  for_rows(logits.count, logits.columns, [&](const Table& simd, int64_t r) {
    const Normaliser normaliser(simd, logits[r], logits.columns);
    out.logprobs[r] = normaliser.logprob(logits[r][ids[r]]);
    out.ranks[r] = 1 + simd.rank(logits[r], logits.columns, ids[r]);
    best_columns(logits[r], logits.columns, out.k, normaliser, out.top_ids + r * out.k,
                 out.top_logprobs + r * out.k);
  });
}

void apply_penalties(Rows<float> logits, RowEntries entries, const int32_t* output_counts,
                     const float* repetition, const float* presence, const float* frequency) {
  const DefaultArithmetic arithmetic;
  for (int64_t r = 0; r < logits.count; ++r) {
    for (int64_t e = entries.row_starts[r]; e < entries.row_starts[r + 1]; ++e) {
      float& x = logits[r][entries.token_ids[e]];
      x = x > 0.0f ? x / repetition[r] : x * repetition[r];
      x = x - frequency[r] * static_cast<float>(output_counts[e]);
      if (output_counts[e] > 0) x = x - presence[r];
    }
  }
}

void apply_bias(Rows<float> logits, RowEntries entries, const float* values) {
  const DefaultArithmetic arithmetic;
  for (int64_t r = 0; r < logits.count; ++r) {
    for (int64_t e = entries.row_starts[r]; e < entries.row_starts[r + 1]; ++e) {
      logits[r][entries.token_ids[e]] += values[e];
    }
  }
}

void apply_bitmask(Rows<float> logits, Rows<const uint32_t> words, const int64_t* rows) {
  for_rows(words.count, logits.columns, [&](const Table& simd, int64_t i) {
    simd.apply_bitmask(logits[rows == nullptr ? i : rows[i]], logits.columns, words[i]);
  });
}

void choose(Logits logits, const int64_t* rows, int64_t count, const SamplingParameters* parameters,
            const int64_t* positions, int64_t* tokens, bool* finite) {
  for_rows(count, logits.columns, [&](const Table& simd, int64_t i) {
    const float* x = logits[rows == nullptr ? i : rows[i]];
    const SamplingParameters& p = parameters[i];
    const Peak peak = simd.peak(x, logits.columns);
    tokens[i] = peak.column;
    finite[i] = peak.finite;
    if (peak.column < 0 || p.temperature < kGreedyTemperature) return;
    static thread_local RowSampler sampler;
    tokens[i] = sampler.draw(simd, x, logits.columns, peak.logit, p, Philox(p.seed, positions[i], kFresh));
  });
}

}  // namespace di
