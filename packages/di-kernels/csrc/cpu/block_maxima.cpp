#include "cpu/block_maxima.hpp"

#include <algorithm>
#include <limits>

#include "cpu/ceil_div.hpp"
#include "simd/topk.hpp"

namespace di {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargestBf16 = 0x1.fep127f;

}  // namespace

void rank_blocks(float* maxima, int64_t count, int64_t first, int64_t last) {
  for (int64_t i = 0; i < count; ++i) {
    maxima[i] = first + i == last ? kInfinity : std::min(maxima[i], kLargestBf16);
  }
}

void BlockMaxima::start(int64_t top_blocks, int64_t block_size, int64_t visible, int64_t first) {
  best_.start(top_blocks);
  size_ = block_size;
  last_ = ceil_div(visible, block_size) - 1;
  next_ = first / block_size;
  filled_ = 0;
  top_ = -kInfinity;
}

void BlockMaxima::push(const float* scores, int64_t n) {
  float maxima[kColumns];
  if (kColumns % size_ == 0) {  // a tile holds whole blocks
    topk_simd::active().block_maxima(scores, n, size_, maxima);
    put(maxima, ceil_div(n, size_));
  } else {
    put(maxima, running(scores, n, maxima));
  }
}

void BlockMaxima::end() {
  if (filled_ > 0) put(&top_, 1);
  filled_ = 0;
}

// Maxima of the blocks that end in this tile; returns how many there are.
int64_t BlockMaxima::running(const float* scores, int64_t n, float* maxima) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    top_ = scores[i] > top_ ? scores[i] : top_;
    if (++filled_ < size_) continue;
    maxima[count++] = top_;
    filled_ = 0;
    top_ = -kInfinity;
  }
  return count;
}

void BlockMaxima::put(float* maxima, int64_t count) {
  rank_blocks(maxima, count, next_, last_);
  best_.push(maxima, count, next_);
  next_ += count;
}

}  // namespace di
