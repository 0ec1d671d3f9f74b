#include "bind/stub_device.hpp"

#include <nanobind/ndarray.h>

#include <optional>
#include <utility>

#include "bind/arrays.hpp"
#include "bind/shared_scheduler.hpp"
#include "scheduler/stub_device.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace di::scheduler {

void bind_stub_device(nb::module_& m) {
  nb::class_<StubDevice>(m, "StubDevice")
      .def(nb::init<double, double>(), "base_us"_a, "row_us"_a)
      .def(
          "submit", [](StubDevice& self, const PlanHandle& plan) { self.submit(plan.plan, plan.pool); },
          "plan"_a)
      .def(
          "wait",
          [](StubDevice& self, double timeout_s) {
            std::optional<StubResult> result;
            {
              const nb::gil_scoped_release release;
              result = self.wait(std::chrono::duration<double>(timeout_s));
            }
            if (!result) return nb::object(nb::none());
            return nb::object(nb::make_tuple(owned_array(std::move(result->tokens)),
                                             owned_array(std::move(result->counts)),
                                             owned_array(std::move(result->drafts))));
          },
          "timeout_s"_a)
      .def_prop_ro("busy_seconds", &StubDevice::busy_seconds)
      .def_prop_ro("span_seconds", &StubDevice::span_seconds)
      .def("reset_times", &StubDevice::reset_times);
}

}  // namespace di::scheduler
