// Torch tensors as arguments of native functions, without torch headers: the DLPack C exchange interface.
// A View borrows the tensor for the duration of the call; nothing is copied, converted or kept alive.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

#include "numeric.hpp"

namespace nb = nanobind;

extern "C" {

struct DiDLVersion {
  uint32_t major, minor;
};
struct DiDLDevice {
  int32_t type, id;
};
struct DiDLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};
struct DiDLTensor {
  void* data;
  DiDLDevice device;
  int32_t ndim;
  DiDLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DiDLExchangeHeader {
  DiDLVersion version;
  DiDLExchangeHeader* previous;
};
struct DiDLExchangeApi {
  DiDLExchangeHeader header;
  void* allocate;
  void* from_python;
  void* to_python;
  int (*borrow)(void* object, DiDLTensor* out);  // fills a borrowed view, no synchronisation
  void* current_stream;
};

}  // extern "C"

namespace di::bind {

struct View {
  DiDLTensor tensor;
  bool negated;  // its memory holds the values with the other sign (`z.conj().imag` is such a view)
};

// Fills `out` from a torch tensor; false (without a Python error) when the object is none.
bool borrow(nb::handle object, View* out) noexcept;

template <class T>
struct DType;
template <>
struct DType<float> {
  static constexpr uint8_t code = 2, bits = 32;
  static constexpr const char* name = "float32";
};
template <>
struct DType<bf16> {
  static constexpr uint8_t code = 4, bits = 16;
  static constexpr const char* name = "bfloat16";
};
template <>
struct DType<uint8_t> {
  static constexpr uint8_t code = 1, bits = 8;
  static constexpr const char* name = "uint8";
};
template <>
struct DType<bool> {
  static constexpr uint8_t code = 6, bits = 8;
  static constexpr const char* name = "bool";
};
template <>
struct DType<int32_t> {
  static constexpr uint8_t code = 0, bits = 32;
  static constexpr const char* name = "int32";
};
template <>
struct DType<int64_t> {
  static constexpr uint8_t code = 0, bits = 64;
  static constexpr const char* name = "int64";
};

template <class T>
bool is(const View& v) {
  return v.tensor.dtype.code == DType<T>::code && v.tensor.dtype.bits == DType<T>::bits;
}

// A checked array: data pointer, shape and strides in elements.
template <class T, int N>
struct Array {
  T* data;
  std::array<int64_t, N> shape, stride;
};

// Checks device, element type and rank; strides are free.
template <class T, int N>
Array<T, N> strided(const View& v, const char* name) {
  const DiDLTensor& t = v.tensor;
  if (t.device.type != 1) throw nb::value_error((std::string(name) + " is not on the CPU").c_str());
  if (!is<T>(v)) throw nb::type_error((std::string(name) + " must have dtype " + DType<T>::name).c_str());
  if (v.negated) {
    throw nb::value_error((std::string(name) + " is a negated view; pass its resolve_neg()").c_str());
  }
  if (t.ndim != N) {
    throw nb::value_error(
        (std::string(name) + " has rank " + std::to_string(t.ndim) + ", expected " + std::to_string(N))
            .c_str());
  }
  Array<T, N> out;
  out.data = reinterpret_cast<T*>(static_cast<char*>(t.data) + t.byte_offset);
  const auto is_empty = [](int64_t size) { return size == 0; };
  if (t.data == nullptr && std::none_of(t.shape, t.shape + N, is_empty)) {
    throw nb::value_error((std::string(name) + " has no memory").c_str());  // a fake tensor, or one let go
  }
  int64_t dense = 1;
  for (int d = N - 1; d >= 0; --d) {
    out.shape[d] = t.shape[d];
    out.stride[d] = t.strides != nullptr ? t.strides[d] : dense;
    dense *= t.shape[d];
  }
  return out;
}

// Like strided, and the last dimension must be dense.
template <class T, int N>
Array<T, N> rows(const View& v, const char* name) {
  const auto out = strided<T, N>(v, name);
  if (out.shape[N - 1] > 1 && out.stride[N - 1] != 1) {
    throw nb::value_error((std::string(name) + " must be contiguous in its last dimension").c_str());
  }
  return out;
}

// Like strided, and the array must be dense (C order).
template <class T, int N>
Array<T, N> dense(const View& v, const char* name) {
  const auto out = strided<T, N>(v, name);
  int64_t expected = 1;
  bool empty = false;
  for (int d = 0; d < N; ++d) empty |= out.shape[d] == 0;
  for (int d = N - 1; d >= 0 && !empty; --d) {
    if (out.shape[d] > 1 && out.stride[d] != expected) {
      throw nb::value_error((std::string(name) + " must be contiguous").c_str());
    }
    expected *= out.shape[d];
  }
  return out;
}

inline void require(bool ok, const char* message) {
  if (!ok) throw nb::value_error(message);
}

constexpr int64_t kAny = -1;  // as a size: whatever it is

template <size_t N>
std::string shape_text(const std::array<int64_t, N>& shape) {
  std::string text;
  for (const int64_t size : shape) {
    text += (text.empty() ? "" : ", ") + (size == kAny ? std::string("any") : std::to_string(size));
  }
  return "[" + text + "]";
}

template <class T, int N>
void require_shape(const Array<T, N>& array, const char* name,
                   const std::type_identity_t<std::array<int64_t, N>>& expected) {
  for (int d = 0; d < N; ++d) {
    if (expected[d] == kAny || array.shape[d] == expected[d]) continue;
    const std::string shapes = shape_text(array.shape) + "; expected " + shape_text(expected);
    throw nb::value_error((std::string(name) + " has shape " + shapes).c_str());
  }
}

// The same, of a given shape.
template <class T, int N>
Array<T, N> rows(const View& v, const char* name, const std::array<int64_t, N>& shape) {
  const auto out = rows<T, N>(v, name);
  require_shape(out, name, shape);
  return out;
}
template <class T, int N>
Array<T, N> dense(const View& v, const char* name, const std::array<int64_t, N>& shape) {
  const auto out = dense<T, N>(v, name);
  require_shape(out, name, shape);
  return out;
}

inline void require_multiple(const char* what, int64_t value, int64_t factor) {
  if (value % factor == 0) return;
  throw nb::value_error((std::string(what) + " is " + std::to_string(value) + "; it must be a multiple of " +
                         std::to_string(factor))
                            .c_str());
}

void bind_math(nb::module_& m);
void bind_ceilings(nb::module_& m);
void bind_formats(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_norm(nb::module_& m);
void bind_rope(nb::module_& m);
void bind_cache(nb::module_& m);
void bind_hyper(nb::module_& m);
void bind_moe(nb::module_& m);
void bind_route(nb::module_& m);
void bind_embedding(nb::module_& m);
void bind_compress(nb::module_& m);
void bind_topk(nb::module_& m);
void bind_indexer(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_engram(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_plan(nb::module_& m);

}  // namespace di::bind

namespace nanobind::detail {

template <>
struct type_caster<di::bind::View> {
  NB_TYPE_CASTER(di::bind::View, const_name("torch.Tensor"))

  bool from_python(handle object, uint8_t, cleanup_list*) noexcept {
    return di::bind::borrow(object, &value);
  }
  static handle from_cpp(const di::bind::View&, rv_policy, cleanup_list*) noexcept { return handle(); }
};

}  // namespace nanobind::detail
