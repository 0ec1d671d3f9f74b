// Philox4x32-10 counter generator, cuRAND convention (decoding specification, 5.1).
#pragma once

#include <array>
#include <cstdint>

namespace di {

// The stream of one (seed, position, purpose): key = seed, subsequence = 3 * position + purpose, offset 0.
class Philox {
 public:
  Philox(uint64_t seed, int64_t position, int64_t purpose)
      : seed_(seed), subsequence_(3 * static_cast<uint64_t>(position) + static_cast<uint64_t>(purpose)) {}

  uint32_t next() {
    if (used_ == 4) {
      values_ = block(seed_, next_block_++, subsequence_);
      used_ = 0;
    }
    return values_[used_++];
  }

 private:
  static std::array<uint32_t, 4> block(uint64_t key, uint64_t low, uint64_t high) {
    std::array<uint32_t, 4> c = {lo(low), hi(low), lo(high), hi(high)};
    uint32_t k0 = lo(key), k1 = hi(key);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c[0];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c[2];
      c = {hi(p1) ^ c[1] ^ k0, lo(p1), hi(p0) ^ c[3] ^ k1, lo(p0)};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return c;
  }
  static uint32_t lo(uint64_t x) { return static_cast<uint32_t>(x); }
  static uint32_t hi(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

  uint64_t seed_, subsequence_, next_block_ = 0;
  std::array<uint32_t, 4> values_{};
  int used_ = 4;
};

}  // namespace di
