// Whether the tile registers of a thread are in use (csrc/amx/tiles.hpp). To configure them takes as long as
// five dots of tiles and waits for all that was begun before, so they stay configured from call to call
// within a thread's part of a parallel loop. At its end they are released: without tiles a thread is switched
// faster, and other code may use them in its own way.
#pragma once

#include <cstdint>

namespace di {

// What the tiles of this thread are configured for; 0: not in use.
extern constinit thread_local int64_t tile_rows;

void release_tiles();

// How many threads of a parallel loop have tiles that are in use, by the processor's word; for tests.
int64_t tiles_in_use();

// Releases them where it ends.
class TilesUntilHere {
 public:
  TilesUntilHere() = default;
  ~TilesUntilHere() {
    if (tile_rows != 0) release_tiles();
  }
  TilesUntilHere(const TilesUntilHere&) = delete;
  TilesUntilHere& operator=(const TilesUntilHere&) = delete;
};

}  // namespace di
