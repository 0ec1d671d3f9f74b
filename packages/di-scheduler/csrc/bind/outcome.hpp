// The results of a step, as they come from Python.
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "bind/arrays.hpp"
#include "scheduler/step_plan.hpp"

namespace di::scheduler {

template <typename T>
using OptionalView = std::optional<ArrayView<T>>;
template <typename T>
using OptionalRows =
    std::optional<nanobind::ndarray<const T, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>>;

template <typename T>
std::optional<std::span<const T>> as_optional_span(const OptionalView<T>& array) {
  if (!array) return std::nullopt;
  return as_span(*array);
}

// One row for each of `count` sampling sequences; how wide they are is checked with the plan.
template <typename T>
std::optional<std::span<const T>> as_rows(const char* name, const OptionalRows<T>& rows, std::size_t count) {
  if (!rows) return std::nullopt;
  check_aligned(rows->data());
  if (rows->shape(0) != count) {
    throw std::invalid_argument(std::string(name) + " has " + std::to_string(rows->shape(0)) +
                                " rows, there are " + std::to_string(count) + " counts");
  }
  return std::span<const T>(rows->data(), rows->size());
}

inline StepOutcome as_outcome(const ArrayView<Token>& tokens, const ArrayView<std::int32_t>& counts,
                              const OptionalRows<Token>& drafts, const OptionalRows<float>& confidences) {
  return {as_span(tokens), as_span(counts), as_rows("drafts", drafts, counts.size()),
          as_rows("confidences", confidences, counts.size())};
}

}  // namespace di::scheduler
