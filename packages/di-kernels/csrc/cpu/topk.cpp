#include "cpu/topk.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "parallel.hpp"
#include "simd/topk.hpp"

namespace di {
namespace {

using topk_simd::kBelowAll;
using topk_simd::Kept;
using topk_simd::kSlack;

constexpr int64_t kRoom = 2048;  // scores a list takes beyond k before it is cut back to k
constexpr int32_t kMinusInfinity = static_cast<int32_t>(0x807fffffu);  // its key
constexpr int64_t kLargeRow = 4096;  // from here on a sample is worth taking
constexpr int64_t kMaxSample = 4096;

int64_t filter_into(const float* x, int64_t n, int32_t first, int32_t above, int64_t limit, Kept* kept) {
  return topk_simd::active().filter_float(x, n, first, above, limit, kept);
}

int64_t filter_into(const bf16* x, int64_t n, int32_t first, int32_t above, int64_t limit, Kept* kept) {
  return topk_simd::active().filter_bf16(reinterpret_cast<const uint16_t*>(x), n, first, above, limit, kept);
}

// A key that somewhat more than k of the scores should reach, judged by every n/m-th of them. That it holds
// is not needed: fewer are noticed, more only cost time.
template <class T>
int32_t sampled_bound(const T* scores, int64_t n, int64_t k) {
  const int64_t size = std::clamp(n / 16, kMaxSample / 8, kMaxSample), step = n / size;
  const double expected = static_cast<double>(k) * static_cast<double>(size) / static_cast<double>(n);
  const auto rank = static_cast<int64_t>(expected + 3.0 * std::sqrt(expected) + 2.0);
  T sample[kMaxSample];
  int32_t key[kMaxSample + kSlack], index[kMaxSample + kSlack];
  for (int64_t i = 0; i < size; ++i) sample[i] = scores[i * step];
  Kept kept{key, index, 0};
  filter_into(sample, size, 0, kBelowAll, kMaxSample, &kept);
  const int32_t least = topk_simd::active().kth_largest(key, size, std::min(rank, size));
  if (least <= kMinusInfinity) return kBelowAll;
  // Just below it, so that scores equal to it are kept: whole rows may be equal. There is no key of -0.
  return least == 0 ? -2 : least - 1;
}

}  // namespace

void TopK::start(int64_t k) { start(k, kBelowAll); }

void TopK::start(int64_t k, int32_t above) {
  k_ = k;
  count_ = 0;
  above_ = above;
  limit_ = k + std::max(k / 2, kRoom);
  const auto size = static_cast<size_t>(limit_ + kSlack);
  if (key_.size() < size) {
    key_.resize(size);
    index_.resize(size);
  }
}

void TopK::prune() {
  const int32_t least = topk_simd::active().kth_largest(key_.data(), count_, k_);
  int64_t above = 0;
  for (int64_t i = 0; i < count_; ++i) above += key_[i] > least;
  int64_t ties = k_ - above;  // keys equal to the least one that still fit
  int64_t kept = 0;
  for (int64_t i = 0; i < count_; ++i) {
    const bool tie = key_[i] == least && ties > 0;
    const bool keep = key_[i] > least || tie;
    ties -= tie;
    key_[kept] = key_[i];
    index_[kept] = index_[i];
    kept += keep;
  }
  count_ = kept;
  above_ = least;  // what comes later stands behind all of these
}

template <class T>
void TopK::filter(const T* scores, int64_t n, int64_t first) {
  while (n > 0) {
    Kept kept{key_.data(), index_.data(), count_};
    const int64_t seen = filter_into(scores, n, static_cast<int32_t>(first), above_, limit_, &kept);
    count_ = kept.count;
    if (count_ > limit_) prune();
    scores += seen;
    first += seen;
    n -= seen;
  }
}

void TopK::push(const float* scores, int64_t n, int64_t first) { filter(scores, n, first); }
void TopK::push(const bf16* scores, int64_t n, int64_t first) { filter(scores, n, first); }

void TopK::merge(const TopK& later) {
  for (int64_t i = 0; i < later.count_; ++i) {
    if (later.key_[i] <= above_) continue;
    key_[count_] = later.key_[i];
    index_[count_++] = later.index_[i];
    if (count_ > limit_) prune();
  }
}

int64_t TopK::finish(int32_t* out) {
  if (count_ > k_) prune();
  std::copy_n(index_.data(), count_, out);
  return count_;
}

template <class T>
int64_t select_largest(const T* scores, int64_t n, int64_t k, TopK& work, int32_t* out) {
  if (n <= k) {
    std::iota(out, out + n, 0);
    return n;
  }
  if (n >= kLargeRow && n >= 4 * k) {
    work.start(k, sampled_bound(scores, n, k));
    work.push(scores, n, 0);
    const int64_t count = work.finish(out);
    if (count == k) return k;
  }
  work.start(k);
  work.push(scores, n, 0);
  return work.finish(out);
}

template <class T>
void topk_indices(const T* scores, int64_t stride, int64_t rows, int64_t n, const int32_t* lengths, int64_t k,
                  int32_t* out) {
  parallel_for(rows, n, [&](int64_t begin, int64_t end) {
    thread_local TopK work;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t length = std::clamp<int64_t>(lengths[r], 0, n);
      const int64_t count = select_largest(scores + r * stride, length, k, work, out + r * k);
      std::fill(out + r * k + count, out + (r + 1) * k, -1);
    }
  });
}

#define DI_INSTANTIATE(T)                                                          \
  template int64_t select_largest<T>(const T*, int64_t, int64_t, TopK&, int32_t*); \
  template void topk_indices<T>(const T*, int64_t, int64_t, int64_t, const int32_t*, int64_t, int32_t*);
DI_INSTANTIATE(float)
DI_INSTANTIATE(bf16)
#undef DI_INSTANTIATE

}  // namespace di
