#pragma once

#include <nanobind/nanobind.h>

namespace di::scheduler {

void bind_step_plan(nanobind::module_& m);
void bind_commit_result(nanobind::module_& m);

}  // namespace di::scheduler
