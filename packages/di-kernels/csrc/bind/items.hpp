// Tuples of Python as arguments of native functions: how many items there are and what each one is.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "bind/tensor.hpp"

namespace di::bind {

// The items of a tuple by name, borrowed for the duration of the call. Whatever does not fit raises a Python
// error that names the argument, the item, what it is and what is allowed.
class Items {
 public:
  Items(const nb::tuple& tuple, const char* argument, std::span<const char* const> names)
      : tuple_(tuple), argument_(argument), names_(names) {
    if (tuple.size() == names.size()) return;
    std::string message = std::string(argument) + " has " + std::to_string(tuple.size()) + " items; expected";
    for (const char* name : names) message += std::string(" ") + name;
    throw nb::value_error(message.c_str());
  }

  View tensor(size_t i) const {
    View view;
    if (!nb::try_cast(item(i), view)) refuse(i, "a tensor");
    return view;
  }

  std::optional<View> tensor_or_none(size_t i) const {
    return item(i).is_none() ? std::nullopt : std::optional(tensor(i));
  }

  const char* text(size_t i) const {
    const char* text = nullptr;
    if (!nb::try_cast(item(i), text) || text == nullptr) refuse(i, "UTF-8 text");
    return text;
  }

  // An integer from low to high.
  int64_t integer(size_t i, int64_t low, int64_t high) const {
    if (!nb::isinstance<nb::int_>(item(i))) refuse(i, "an integer");
    int64_t value = 0;
    if (!nb::try_cast(item(i), value) || value < low || value > high) {
      const std::string allowed = std::to_string(low) + " to " + std::to_string(high);
      const std::string given = nb::str(item(i)).c_str();
      throw nb::value_error((name(i) + " is " + given + "; allowed: " + allowed).c_str());
    }
    return value;
  }

 private:
  nb::handle item(size_t i) const { return nb::handle(tuple_[i]); }
  std::string name(size_t i) const { return std::string(argument_) + "." + names_[i]; }

  [[noreturn]] void refuse(size_t i, const char* allowed) const {
    const std::string kind = nb::type_name(item(i).type()).c_str();
    throw nb::type_error((name(i) + " must be " + allowed + ", not " + kind).c_str());
  }

  const nb::tuple& tuple_;
  const char* argument_;
  std::span<const char* const> names_;
};

}  // namespace di::bind
