#pragma once

#include <nanobind/nanobind.h>

namespace di::scheduler {

void bind_stub_device(nanobind::module_& m);

}  // namespace di::scheduler
