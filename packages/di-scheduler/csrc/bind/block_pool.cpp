#include "bind/block_pool.hpp"

#include <nanobind/ndarray.h>

#include "bind/arrays.hpp"
#include "scheduler/block_pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace di::scheduler {

void bind_block_pool(nb::module_& m) {
  nb::enum_<AllocStatus>(m, "AllocStatus", "Whether a pool can supply a number of indices.")
      .value("NEVER", AllocStatus::kNever, "More than the pool has at all.")
      .value("OK", AllocStatus::kOk, "Allocating them now succeeds.")
      .value("LATER", AllocStatus::kLater, "Possible when others have freed theirs.");

  nb::class_<BlockPool>(
      m, "BlockPool",
      "Reference-counted allocator of the indices 1 .. num_blocks-1; index 0 is never handed out.\n\n"
      "What was freed first is reused first. All operations are O(1) per index and all or nothing: one\n"
      "that raises BlockPoolError has changed nothing.")
      .def(nb::init<std::int32_t>(), "num_blocks"_a)
      .def(
          "allocate", [](BlockPool& pool, std::int32_t count) { return owned_array(pool.allocate(count)); },
          "count"_a, "Take free indices, each with one reference; int32 [count].")
      .def(
          "pin", [](BlockPool& pool, const ArrayView<BlockId>& ids) { pool.pin(as_span(ids)); },
          nb::arg("ids").noconvert(), "Add one reference per occurrence in ids, int32 [n]; all must be live.")
      .def(
          "free", [](BlockPool& pool, const ArrayView<BlockId>& ids) { pool.free(as_span(ids)); },
          nb::arg("ids").noconvert(),
          "Drop one reference per occurrence in ids, int32 [n], the last entry first, so that the tail of a\n"
          "sequence is reused before its head.")
      .def("can_allocate", &BlockPool::can_allocate, "count"_a,
           "Whether count indices, at least 0, can be had: an AllocStatus.")
      .def("ref_count", &BlockPool::ref_count, "block_id"_a, "References of an index; 0: free.")
      .def(
          "free_list", [](const BlockPool& pool) { return owned_array(pool.free_list()); },
          "Free indices, next one first; int32 [num_free].")
      .def(
          "free_list_backwards",
          [](const BlockPool& pool) { return owned_array(pool.free_list_backwards()); },
          "The same list walked from its end, for tests.")
      .def_prop_ro("num_blocks", &BlockPool::num_blocks)
      .def_prop_ro("num_free", &BlockPool::num_free)
      .def_prop_ro("num_used", &BlockPool::num_used);
}

}  // namespace di::scheduler
