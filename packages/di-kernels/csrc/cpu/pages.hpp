// Advice to the operating system about memory.
#pragma once

#include <cstdint>

namespace di {

// How `bytes` bytes at p that are large and not touched yet are best kept: in pages of 2 MB, for fewer
// translations of addresses, and on all memory nodes that the process may use in turn, so that threads of
// every node read them at the rate of all. What the process was started with (numactl) goes first. Only the
// pages that are whole are advised about; a system that has no such advice does as it likes.
void advise_pages(void* p, int64_t bytes);

}  // namespace di
