#include "bind/speculation.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "scheduler/calibration.hpp"
#include "scheduler/medians.hpp"
#include "scheduler/speculation.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace di::scheduler {
namespace {

// Aligned arrays of exactly this type: di_scheduler.speculation checks before it calls.
template <typename T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rates = Array<const float>;
using Starts = Array<const std::int32_t>;

template <typename T>
std::span<T> as_span(const Array<T>& array) {
  return {array.data(), array.size()};
}

void translate(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const SpeculationError& e) {
    const nb::object type = nb::module_::import_("di_scheduler.speculation").attr("SpeculationError");
    PyErr_SetString(type.ptr(), e.what());
  }
}

void accumulate(const Rates& confidences, const Starts& starts, const Array<float>& rates) {
  check_starts(as_span(starts), confidences.size());
  const std::span<const float> source = as_span(confidences);
  const std::span<float> target = as_span(rates);
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    const std::size_t begin = starts.data()[i];
    const std::size_t count = starts.data()[i + 1] - begin;
    accumulate_rates(source.subspan(begin, count), target.subspan(begin, count));
  }
}

std::int32_t choose(const Calibration& calibration, std::int32_t base_rows, std::int32_t num_seqs,
                    std::int32_t max_drafts, const Rates& rates) {
  const std::span<const float> view = as_span(rates);
  return choose_draft_total(calibration.cost(), base_rows, num_seqs, max_drafts, {view.begin(), view.end()});
}

void bind_calibration(nb::module_& m) {
  nb::class_<Calibration>(m, "Calibration")
      .def(
          "__init__",
          [](Calibration* self, std::vector<std::int32_t> sizes, std::vector<double> milliseconds,
             bool stepped) {
            new (self) Calibration(StepCost(std::move(sizes), std::move(milliseconds), stepped));
          },
          nb::kw_only(), "sizes"_a, "milliseconds"_a, "stepped"_a)
      .def("observe", &Calibration::observe, nb::kw_only(), "num_seqs"_a, "rows"_a, "forward_ms"_a,
           "sampler_ms"_a)
      .def(
          "milliseconds",
          [](const Calibration& self, std::int32_t rows, std::int32_t num_seqs) {
            return self.cost().milliseconds(rows, num_seqs);
          },
          "rows"_a, "num_seqs"_a)
      .def_prop_ro("slope", [](const Calibration& self) { return self.cost().slope(); })
      .def("choose_draft_total", &choose, nb::kw_only(), "base_rows"_a, "num_seqs"_a, "max_drafts"_a,
           nb::arg("rates").noconvert());
}

void bind_medians(nb::module_& m) {
  nb::class_<SlidingMedian>(m, "SlidingMedian", "Median of the last `window` samples; for tests.")
      .def(nb::init<std::int32_t, std::int32_t>(), "window"_a, "min_samples"_a)
      .def("add", &SlidingMedian::add, "sample"_a)
      .def_prop_ro("value", &SlidingMedian::value);
  nb::class_<GroupedMedian>(m, "GroupedMedian", "Median of the medians of groups; for tests.")
      .def(nb::init<std::int32_t, std::int32_t>(), "window"_a, "min_samples"_a)
      .def("add", &GroupedMedian::add, "group"_a, "sample"_a)
      .def_prop_ro("value", &GroupedMedian::value);
}

}  // namespace

void bind_speculation(nb::module_& m) {
  nb::register_exception_translator(translate);
  bind_calibration(m);
  bind_medians(m);
  m.def("accumulate_rates", &accumulate, nb::arg("confidences").noconvert(), nb::arg("starts").noconvert(),
        nb::arg("rates").noconvert());
  m.def(
      "distribute_drafts",
      [](const Rates& rates, const Starts& starts, std::int32_t total, const Array<std::int32_t>& taken) {
        distribute_drafts(as_span(rates), as_span(starts), total, as_span(taken));
      },
      nb::arg("rates").noconvert(), nb::arg("starts").noconvert(), "total"_a, nb::arg("taken").noconvert());
}

}  // namespace di::scheduler
