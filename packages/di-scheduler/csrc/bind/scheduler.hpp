#pragma once

#include <nanobind/nanobind.h>

namespace di::scheduler {

void bind_scheduler(nanobind::module_& m);

}  // namespace di::scheduler
