// Dense arrays of the host: NumPy arrays, or anything else with a buffer, and CPU tensors.
#pragma once

#include <cstring>
#include <span>
#include <string>

#include "bind/tensor.hpp"

namespace di::bind {

template <class T>
constexpr const char* kBufferFormats = "ilq";  // of integers; their size says which
template <>
inline constexpr const char* kBufferFormats<uint8_t> = "B";

template <class T>
class HostArray {
 public:
  // Borrows `object`, dense and of the given rank; construct and destroy it under the interpreter lock. Only
  // what is borrowed as writable may be written to.
  HostArray(nb::handle object, const char* name, int rank, bool writable = false) {
    if (PyObject_CheckBuffer(object.ptr()) != 0) {
      const int flags = PyBUF_ND | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
      if (PyObject_GetBuffer(object.ptr(), &buffer_, flags) != 0) nb::raise_python_error();
      held_ = true;
      const char* format = buffer_.format == nullptr ? "B" : buffer_.format;
      const bool known = std::strlen(format) == 1 && std::strchr(kBufferFormats<T>, format[0]) != nullptr;
      if (!known || buffer_.itemsize != sizeof(T)) refuse_type(name);
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
  ~HostArray() { release(); }
  HostArray(const HostArray&) = delete;
  HostArray& operator=(const HostArray&) = delete;

  std::span<const T> values() const { return values_; }
  T* data() const { return const_cast<T*>(values_.data()); }
  int64_t size() const { return static_cast<int64_t>(values_.size()); }
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
