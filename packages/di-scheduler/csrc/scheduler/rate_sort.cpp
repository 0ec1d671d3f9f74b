#include "scheduler/rate_sort.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace di::scheduler {
namespace {

// Below this, clearing the histograms costs more than comparing.
constexpr std::size_t kRadixThreshold = 256;

// The bits of a float >= 0 are ordered like the float, and those of 1 fit into three digits of 10 bits.
constexpr std::uint32_t kBitsOfOne = std::bit_cast<std::uint32_t>(1.0f);
constexpr int kDigitBits = 10;
constexpr int kDigits = 3;
static_assert(kBitsOfOne < 1u << (kDigits * kDigitBits));

std::uint32_t digit_of(float rate, int digit) {
  const std::uint32_t key = kBitsOfOne - std::bit_cast<std::uint32_t>(rate);
  return key >> (digit * kDigitBits) & ((1u << kDigitBits) - 1);
}

using Histogram = std::array<std::uint32_t, 1u << kDigitBits>;

void radix_sort_descending(std::vector<float>& rates) {
  std::array<Histogram, kDigits> offsets{};
  for (const float rate : rates) {
    for (int digit = 0; digit < kDigits; ++digit) ++offsets[digit][digit_of(rate, digit)];
  }
  std::vector<float> other(rates.size());
  for (int digit = 0; digit < kDigits; ++digit) {
    std::uint32_t start = 0;
    for (std::uint32_t& count : offsets[digit]) {
      const std::uint32_t size = count;
      count = start;
      start += size;
    }
    for (const float rate : rates) other[offsets[digit][digit_of(rate, digit)]++] = rate;
    rates.swap(other);
  }
}

}  // namespace

void sort_descending(std::vector<float>& rates) {
  if (rates.size() < kRadixThreshold) {
    std::sort(rates.begin(), rates.end(), std::greater<>());
  } else {
    radix_sort_descending(rates);
  }
}

}  // namespace di::scheduler
