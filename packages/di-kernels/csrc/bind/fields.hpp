// Attributes of a Python dataclass by name, checked, with the path to them in every error.
#pragma once

#include <nanobind/stl/pair.h>

#include <cstdint>
#include <string>
#include <utility>

#include "bind/weight.hpp"

namespace di::bind {

class Fields {
 public:
  Fields(nb::handle object, std::string path) : object_(nb::borrow(object)), path_(std::move(path)) {}

  bool has(const char* name) const { return !get(name).is_none(); }
  Fields child(const char* name) const { return Fields(get(name), path(name)); }

  // Calls body(child) for each item of a sequence.
  template <class Body>
  void each(const char* name, const Body& body) const {
    const nb::object items = get(name);
    if (!nb::isinstance<nb::sequence>(items)) refuse_kind(path(name), items, "must be a sequence");
    size_t place = 0;
    for (nb::handle item : items) body(Fields(item, path(name) + "[" + std::to_string(place++) + "]"));
  }

  template <class T>
  T value(const char* name) const {
    T out{};
    if (!nb::try_cast(get(name), out)) refuse(name, "has the wrong type");
    return out;
  }

  int64_t integer(const char* name, int64_t low, int64_t high) const {
    const auto out = value<int64_t>(name);
    if (out < low || out > high) {
      refuse(name, "is " + std::to_string(out) + "; allowed: " + std::to_string(low) + " to " +
                       std::to_string(high));
    }
    return out;
  }

  View tensor(const char* name) const { return value<View>(name); }

  // The bytes of a dense vector of n elements, at any address.
  template <class T>
  const uint8_t* vector(const char* name, int64_t n) const {
    const auto array = dense<T, 1>(tensor(name), path(name).c_str());
    require_size(name, array.shape[0], n);
    return reinterpret_cast<const uint8_t*>(array.data);
  }

  // A LinearWeight [n, k], as stored or packed; -1 stands for any size.
  Weight weight(const char* name, int64_t n, int64_t k) const {
    const Weight out = child(name).as_weight();
    if (n >= 0) require_size(name, out.n, n);
    if (k >= 0) require_size(name, out.k, k);
    return out;
  }

  void require_size(const char* name, int64_t actual, int64_t expected) const {
    if (actual != expected) {
      refuse(name, "has a dimension of " + std::to_string(actual) + ", expected " + std::to_string(expected));
    }
  }

  [[noreturn]] void refuse(const char* name, const std::string& what) const {
    throw nb::value_error((path(name) + " " + what).c_str());
  }

  Weight as_weight() const {
    const WeightFormat format = format_of(child("format").value<int64_t>("value"));
    if (has("packed_shape")) {
      const auto shape = value<std::pair<int64_t, int64_t>>("packed_shape");
      return borrow_packed(format, tensor("data"), shape.first, shape.second);
    }
    return borrow_weight(format, tensor("data"),
                         has("scale") ? std::optional(tensor("scale")) : std::nullopt);
  }

  nb::object get(const char* name) const {
    try {
      return object_.attr(name);
    } catch (nb::python_error& error) {
      if (!error.matches(PyExc_AttributeError)) throw;
    }
    refuse_kind(path_, object_, (std::string("has no attribute ") + name).c_str());
  }
  std::string path(const char* name) const { return path_ + "." + name; }

 private:
  [[noreturn]] static void refuse_kind(const std::string& path, nb::handle value, const char* what) {
    const std::string kind = nb::type_name(value.type()).c_str();
    throw nb::type_error((path + " is of type " + kind + ": it " + what).c_str());
  }

  nb::object object_;
  std::string path_;
};

}  // namespace di::bind
