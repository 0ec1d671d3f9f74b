#include "cpu/sampling.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cpu/philox.hpp"
#include "cpu/reduce.hpp"
#include "parallel.hpp"

namespace di {
namespace {

constexpr int64_t kFresh = 0;  // DrawPurpose.FRESH
constexpr double kGreedyTemperature = 1e-5;
constexpr double kFixedPointOne = 2147483648.0;  // 2^31
constexpr int64_t kSumLanes = 16;
constexpr int64_t kMaxLanes = 16;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr double kLn2High = 0x1.62e42fee00000p-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

// exp of x <= 0, in operations that every vector width rounds alike; 0 below e^-708.
inline double exp_nonpositive(double x) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kRounder = 0x1.8p52;  // adding it rounds to an integer and leaves that in the low bits
  constexpr double kSeries[14] = {1.0,
                                  1.0,
                                  1.0 / 2,
                                  1.0 / 6,
                                  1.0 / 24,
                                  1.0 / 120,
                                  1.0 / 720,
                                  1.0 / 5040,
                                  1.0 / 40320,
                                  1.0 / 362880,
                                  1.0 / 3628800,
                                  1.0 / 39916800,
                                  1.0 / 479001600,
                                  1.0 / 6227020800};
  const double shifted = x * kLog2E + kRounder;
  const double n = shifted - kRounder;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double y = kSeries[13];
  for (int k = 12; k >= 0; --k) y = y * r + kSeries[k];
  const double power = std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
  return x < -708.0 ? 0.0 : y * power;
}

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

double fold(double* lanes) {
  for (int64_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

DI_MULTIVERSION
bool row_is_finite(const float* x, int64_t n) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; ++i) bad |= (std::bit_cast<uint32_t>(x[i]) & 0x7f800000u) == 0x7f800000u;
  return bad == 0;
}

// The largest logit, or NaN when the row has no distribution: a NaN, +inf, or nothing above -inf.
DI_MULTIVERSION
float distribution_max(const float* x, int64_t n) {
  float top[kMaxLanes];
  int32_t nan[kMaxLanes] = {};
  std::fill_n(top, kMaxLanes, -std::numeric_limits<float>::infinity());
  int64_t i = 0;
  for (; i + kMaxLanes <= n; i += kMaxLanes) {
    for (int64_t l = 0; l < kMaxLanes; ++l) {
      top[l] = x[i + l] > top[l] ? x[i + l] : top[l];
      nan[l] |= x[i + l] != x[i + l];
    }
  }
  for (; i < n; ++i) {
    top[0] = x[i] > top[0] ? x[i] : top[0];
    nan[0] |= x[i] != x[i];
  }
  for (int64_t l = 1; l < kMaxLanes; ++l) {
    top[0] = std::max(top[0], top[l]);
    nan[0] |= nan[l];
  }
  return nan[0] != 0 || std::isinf(top[0]) ? kNan : top[0];
}

// Fills the softmax weights exp((x - top) / temperature) and returns their sum.
DI_MULTIVERSION
double softmax_weights(const float* x, int64_t n, float top, double temperature, double* weights) {
  for (int64_t i = 0; i < n; ++i) {
    weights[i] = exp_nonpositive((static_cast<double>(x[i]) - static_cast<double>(top)) / temperature);
  }
  double lanes[kSumLanes] = {};
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    for (int64_t l = 0; l < kSumLanes; ++l) lanes[l] += weights[i + l];
  }
  for (int64_t l = 0; i + l < n; ++l) lanes[l] += weights[i + l];
  return fold(lanes);
}

// What a log-probability subtracts from a logit; NaN when the row has no distribution.
struct Normaliser {
  float top;
  double log_sum;

  Normaliser(const float* x, int64_t n, std::vector<double>& weights)
      : top(distribution_max(x, n)), log_sum(0) {
    weights.resize(static_cast<size_t>(n));
    if (top == top) log_sum = log_of_sum(softmax_weights(x, n, top, 1.0, weights.data()));
  }
  float logprob(float x) const {
    return top == top ? static_cast<float>((static_cast<double>(x) - static_cast<double>(top)) - log_sum)
                      : kNan;
  }
};

int64_t first_equal(const float* x, int64_t n, float value) { return std::find(x, x + n, value) - x; }

// Larger key, better rank: logit first (-0 equals +0, NaN last), then the lower column.
uint64_t rank_key(float x, int64_t column) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);
  const uint32_t ordered = x != x ? 0u : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (0xffffffffu - static_cast<uint32_t>(column));
}

int64_t column_of(uint64_t key) { return 0xffffffffu - static_cast<uint32_t>(key); }

// The columns of a row in rank order, by a stable radix sort of the logits in their keys: columns come in
// ascending order and stay so among equals. Its time does not depend on how flat the distribution is.
class Ranking {
 public:
  void rank(const float* x, int64_t n) {
    keys_.resize(static_cast<size_t>(n));
    scratch_.resize(static_cast<size_t>(n));
    uint32_t place[kDigits][kDigitValues] = {};
    for (int64_t i = 0; i < n; ++i) {
      keys_[i] = rank_key(x[i], i);
      for (int d = 0; d < kDigits; ++d) ++place[d][digit(keys_[i], d)];
    }
    for (int d = 0; d < kDigits; ++d) {
      uint32_t next = 0;
      for (int value = kDigitValues - 1; value >= 0; --value) next += std::exchange(place[d][value], next);
      for (const uint64_t key : keys_) scratch_[place[d][digit(key, d)]++] = key;
      keys_.swap(scratch_);
    }
  }
  uint64_t key(int64_t rank) const { return keys_[rank]; }
  int64_t operator[](int64_t rank) const { return column_of(keys_[rank]); }

 private:
  static constexpr int kDigits = 3, kDigitBits = 11, kDigitValues = 1 << kDigitBits;

  static uint64_t digit(uint64_t key, int d) { return key >> (32 + d * kDigitBits) & (kDigitValues - 1); }

  std::vector<uint64_t> keys_, scratch_;
};

// Draws from one row after another; holds the working memory.
class RowSampler {
 public:
  explicit RowSampler(int64_t columns) : n_(columns), weights_(static_cast<size_t>(columns)) {}

  int64_t draw(const float* x, const SamplingParameters& p, int64_t r) {
    const float top = distribution_max(x, n_);
    if (top != top) return -1;
    if (p.temperature[r] < kGreedyTemperature) return first_equal(x, n_, top);
    const double mass = softmax_weights(x, n_, top, p.temperature[r], weights_.data());
    const int64_t limit = p.top_k[r] >= 1 && p.top_k[r] < n_ ? p.top_k[r] : n_;
    kept_.clear();
    if (limit < n_ || p.top_p[r] < 1.0) {
      const double enough = p.top_p[r] < 1.0 ? p.top_p[r] * mass : std::numeric_limits<double>::infinity();
      keep_by_rank(x, limit, enough, p.min_p[r]);
    } else {
      keep_all(p.min_p[r]);
    }
    return pick(Philox(static_cast<uint64_t>(p.seeds[r]), p.positions[r], kFresh));
  }

 private:
  void keep_all(double min_weight) {
    for (int64_t c = 0; c < n_; ++c) {
      if (weights_[c] >= min_weight) kept_.push_back(c);
    }
  }

  // Keeps columns by rank until `limit` of them, or until their mass is `enough`; in column order.
  // The best one has weight 1, so that it always stays.
  void keep_by_rank(const float* x, int64_t limit, double enough, double min_weight) {
    ranking_.rank(x, n_);
    double mass = 0.0;
    int64_t kept = 0;
    while (kept < limit && mass < enough && weights_[ranking_[kept]] >= min_weight) {
      mass += weights_[ranking_[kept++]];
    }
    const uint64_t last = ranking_.key(kept - 1);
    for (int64_t c = 0; c < n_; ++c) {
      if (rank_key(x[c], c) >= last) kept_.push_back(c);
    }
  }

  // Inverse of the cumulative distribution in 31-bit fixed point, columns in ascending order.
  int64_t pick(Philox stream) {
    double lanes[kSumLanes] = {};
    for (const int64_t c : kept_) lanes[c % kSumLanes] += weights_[c];
    const double mass = fold(lanes);
    units_.clear();
    uint64_t total = 0;
    for (const int64_t c : kept_) {
      units_.push_back(static_cast<uint32_t>(weights_[c] / mass * kFixedPointOne));
      total += units_.back();
    }
    const uint64_t limit = 0xffffffffu / total * total;
    uint64_t value = stream.next();
    while (value >= limit) value = stream.next();
    value %= total;
    size_t i = 0;
    while (value >= units_[i]) value -= units_[i++];
    return kept_[i];
  }

  int64_t n_;
  std::vector<double> weights_;
  std::vector<int64_t> kept_;
  std::vector<uint32_t> units_;
  Ranking ranking_;
};

}  // namespace

void philox(const int64_t* seeds, const int64_t* positions, int64_t purpose, Rows<int64_t> out) {
  for (int64_t r = 0; r < out.count; ++r) {
    Philox stream(static_cast<uint64_t>(seeds[r]), positions[r], purpose);
    for (int64_t i = 0; i < out.columns; ++i) out[r][i] = stream.next();
  }
}

void all_finite(Logits logits, bool* out) {
  parallel_for(logits.count, 8 * logits.columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) out[r] = row_is_finite(logits[r], logits.columns);
  });
}

void argmax(Logits logits, int64_t* out) {
  parallel_for(logits.count, 8 * logits.columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float top = distribution_max(logits[r], logits.columns);
      out[r] = top == top ? first_equal(logits[r], logits.columns, top) : -1;
    }
  });
}

void log_softmax(Logits logits, Rows<float> out) {
  parallel_for(logits.count, 8 * logits.columns, [&](int64_t begin, int64_t end) {
    std::vector<double> weights;
    for (int64_t r = begin; r < end; ++r) {
      const Normaliser normaliser(logits[r], logits.columns, weights);
      for (int64_t c = 0; c < logits.columns; ++c) out[r][c] = normaliser.logprob(logits[r][c]);
    }
  });
}

void logprobs_at(Logits logits, const int64_t* ids, float* out) {
  parallel_for(logits.count, 8 * logits.columns, [&](int64_t begin, int64_t end) {
    std::vector<double> weights;
    for (int64_t r = begin; r < end; ++r) {
      out[r] = Normaliser(logits[r], logits.columns, weights).logprob(logits[r][ids[r]]);
    }
  });
}

void token_ranks(Logits logits, const int64_t* ids, int64_t* out) {
  parallel_for(logits.count, 8 * logits.columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const uint64_t own = rank_key(logits[r][ids[r]], ids[r]);
      int64_t rank = 1;
      for (int64_t c = 0; c < logits.columns; ++c) rank += rank_key(logits[r][c], c) > own;
      out[r] = rank;
    }
  });
}

void top_logprobs(Logits logits, int64_t k, int64_t* ids, float* logprobs) {
  parallel_for(logits.count, 8 * logits.columns, [&](int64_t begin, int64_t end) {
    std::vector<double> weights;
    Ranking ranking;
    for (int64_t r = begin; r < end; ++r) {
      const Normaliser normaliser(logits[r], logits.columns, weights);
      ranking.rank(logits[r], logits.columns);
      for (int64_t i = 0; i < k; ++i) {
        ids[r * k + i] = ranking[i];
        logprobs[r * k + i] = normaliser.logprob(logits[r][ranking[i]]);
      }
    }
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

void sample(Logits logits, SamplingParameters parameters, int64_t* out) {
  parallel_for(logits.count, 8 * logits.columns, [&](int64_t begin, int64_t end) {
    RowSampler sampler(logits.columns);
    for (int64_t r = begin; r < end; ++r) out[r] = sampler.draw(logits[r], parameters, r);
  });
}

}  // namespace di
