#include "tile_state.hpp"

#include <atomic>

#include "isa.hpp"
#include "parallel.hpp"

namespace di {
namespace {

// The processor's own word for it: a mask of what it would save for this thread.
bool has_tiles() {
#if defined(__x86_64__)
  constexpr uint32_t kInUse = 1, kTileData = 1 << 18;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(kInUse));
  return (low & kTileData) != 0;
#else
  return false;
#endif
}

}  // namespace

constinit thread_local int64_t tile_rows = 0;

void release_tiles() {
#if defined(__x86_64__)
  asm volatile("tilerelease");
#endif
  tile_rows = 0;
}

int64_t tiles_in_use() {
  if (isa_name(supported_isas().back()) != "amx") return 0;
  std::atomic<int64_t> found{0};
  const int64_t threads = num_threads();
  for_parts(threads, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) found += has_tiles();
  });
  return found;
}

}  // namespace di
