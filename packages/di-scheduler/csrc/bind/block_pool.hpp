#pragma once

#include <nanobind/nanobind.h>

namespace di::scheduler {

void bind_block_pool(nanobind::module_& m);

}  // namespace di::scheduler
