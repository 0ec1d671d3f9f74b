// Advice to the operating system about memory.
#pragma once

#include <cstdint>

namespace di {

// Asks for pages of 2 MB behind the whole ones among `bytes` bytes at p, before they are touched; false where
// the system does not know them. Weights are then read with fewer translations of addresses.
bool advise_large_pages(void* p, int64_t bytes);

}  // namespace di
