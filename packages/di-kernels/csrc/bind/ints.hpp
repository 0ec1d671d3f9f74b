// Arrays of int32 or int64 that a call reads: NumPy arrays, or anything else with a buffer, and CPU tensors.
#pragma once

#include <cstring>
#include <span>
#include <string>

#include "bind/tensor.hpp"

namespace di::bind {

template <class T>
class Ints {
 public:
  // Borrows `object`, dense and of the given rank; construct and destroy it under the interpreter lock.
  Ints(nb::handle object, const char* name, int rank) {
    if (PyObject_CheckBuffer(object.ptr()) != 0) {
      if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_ND | PyBUF_FORMAT) != 0) nb::raise_python_error();
      held_ = true;
      const char* format = buffer_.format == nullptr ? "B" : buffer_.format;
      const bool integer = std::strlen(format) == 1 && std::strchr("ilq", format[0]) != nullptr;
      if (!integer || buffer_.itemsize != sizeof(T)) refuse_type(name);
      if (buffer_.ndim != rank) refuse_rank(name, buffer_.ndim, rank);
      take(static_cast<const T*>(buffer_.buf), buffer_.shape, rank);
      return;
    }
    View view{};
    if (!nb::try_cast(object, view) || !is<T>(view)) refuse_type(name);
    if (view.tensor.ndim != rank) refuse_rank(name, view.tensor.ndim, rank);
    if (rank == 1) {
      const auto array = dense<T, 1>(view, name);
      take(array.data, array.shape.data(), 1);
    } else {
      const auto array = dense<T, 2>(view, name);
      take(array.data, array.shape.data(), 2);
    }
  }
  ~Ints() { release(); }
  Ints(const Ints&) = delete;
  Ints& operator=(const Ints&) = delete;

  std::span<const T> values() const { return values_; }
  int64_t columns() const { return columns_; }  // size of the last dimension

 private:
  template <class Size>
  void take(const T* data, const Size* shape, int rank) {
    size_t count = 1;
    for (int d = 0; d < rank; ++d) count *= static_cast<size_t>(shape[d]);
    values_ = {data, count};
    columns_ = shape[rank - 1];
  }
  void release() {
    if (held_) PyBuffer_Release(&buffer_);
    held_ = false;
  }
  [[noreturn]] void refuse_type(const char* name) {
    release();
    throw nb::type_error(
        (std::string(name) + " must be an array or CPU tensor of " + DType<T>::name).c_str());
  }
  [[noreturn]] void refuse_rank(const char* name, int actual, int expected) {
    release();
    throw nb::value_error(
        (std::string(name) + " has rank " + std::to_string(actual) + ", expected " + std::to_string(expected))
            .c_str());
  }

  Py_buffer buffer_{};
  bool held_ = false;
  std::span<const T> values_;
  int64_t columns_ = 0;
};

}  // namespace di::bind
