// Python bindings of speculation planning; di_scheduler.speculation wraps them.
#pragma once

#include <nanobind/nanobind.h>

namespace di::scheduler {

void bind_speculation(nanobind::module_& m);

}  // namespace di::scheduler
