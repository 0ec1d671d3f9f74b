// NumPy arrays at the border: views of the exact dtype go in (no conversion, no copy), read-only arrays that
// own their memory come out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace di::scheduler {

template <typename T>
using ArrayView = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

template <typename T>
void check_aligned(const T* data) {
  if (reinterpret_cast<std::uintptr_t>(data) % alignof(T) != 0) {
    throw nanobind::type_error("an array must be aligned in memory to the size of its items");
  }
}

template <typename T>
std::span<const T> as_span(const ArrayView<T>& array) {
  check_aligned(array.data());
  return {array.data(), array.size()};
}

// A read-only array over memory that `owner` keeps alive.
template <typename T, typename... Sizes>
nanobind::object array_view(const T* data, nanobind::handle owner, Sizes... sizes) {
  return nanobind::cast(
      nanobind::ndarray<nanobind::numpy, const T>(data, {static_cast<std::size_t>(sizes)...}, owner));
}

template <typename T>
nanobind::object array_view(const std::vector<T>& values, nanobind::handle owner) {
  return array_view(values.data(), owner, values.size());
}

// The same as a plain buffer, which NumPy knows nothing of.
template <typename T, typename... Sizes>
nanobind::object buffer_view(const T* data, nanobind::handle owner, Sizes... sizes) {
  return nanobind::cast(
      nanobind::ndarray<nanobind::memview, const T>(data, {static_cast<std::size_t>(sizes)...}, owner));
}

template <typename T>
nanobind::object buffer_view(const std::vector<T>& values, nanobind::handle owner) {
  return buffer_view(values.data(), owner, values.size());
}

template <typename T>
nanobind::capsule owner_of(std::unique_ptr<T> object) {
  nanobind::capsule owner(object.get(), [](void* p) noexcept { delete static_cast<T*>(p); });
  object.release();
  return owner;
}

template <typename T>
nanobind::object owned_array(std::vector<T> values) {
  auto held = std::make_unique<std::vector<T>>(std::move(values));
  const std::vector<T>& view = *held;
  return array_view(view, owner_of(std::move(held)));
}

}  // namespace di::scheduler
