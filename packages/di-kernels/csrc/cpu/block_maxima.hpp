// Best blocks of entries by the largest score in each (attention specification, 9.1).
#pragma once

#include <cstdint>

#include "cpu/index_tiles.hpp"
#include "cpu/topk.hpp"

namespace di {

// Makes maxima of blocks, from block `first` on, what these are chosen by: the largest finite bfloat16 number
// caps them, and the last visible block stands above all.
void rank_blocks(float* maxima, int64_t count, int64_t first, int64_t last);

// Scores of one row that come in tiles, in order.
class BlockMaxima {
 public:
  // `first` is the first entry that will come, the first one of a block.
  void start(int64_t top_blocks, int64_t block_size, int64_t visible, int64_t first);
  void push(const float* scores, int64_t n);  // n <= kColumns, fewer only in the last tile
  void end();
  TopK& best() { return best_; }

 private:
  int64_t running(const float* scores, int64_t n, float* maxima);
  void put(float* maxima, int64_t count);

  TopK best_;
  int64_t size_ = 1, last_ = 0, next_ = 0;
  int64_t filled_ = 0;  // entries of a block that goes on in the next tile
  float top_ = 0.0f;    // the largest score of those
};

}  // namespace di
