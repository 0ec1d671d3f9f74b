// Where a piece of prefill may end.
#pragma once

#include <cstdint>

#include "scheduler/sequence.hpp"
#include "scheduler/types.hpp"

namespace di::scheduler {

// Rows of the sequence's next prefill piece that fit `budget` rows of a step (padding counted) and `room`
// positions of cache: as many as possible, but a checkpoint ends a chunk, an image is never cut, and a chunk
// that stops short is a multiple of the alignment. 0 when nothing can be taken.
std::int32_t chunk_rows(const Config& config, const Sequence& sequence, std::int32_t budget,
                        std::int64_t room);

// The least of these `rows` that are a piece by themselves.
std::int32_t least_rows(const Config& config, const Sequence& sequence, std::int32_t rows);

}  // namespace di::scheduler
