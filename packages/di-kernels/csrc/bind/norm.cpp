#include "cpu/norm.hpp"

#include <nanobind/stl/optional.h>

#include "bind/tensor.hpp"

namespace di::bind {
namespace {

template <class T>
void call(const View& x, const View& weight, const View& y, float eps, const std::optional<View>& quantized) {
  const auto in = dense<T, 2>(x, "x");
  const auto out = dense<T, 2>(y, "y", in.shape);
  const auto w = dense<float, 1>(weight, "weight", {in.shape[1]});
  T* second = nullptr;
  if (quantized.has_value()) {
    second = dense<T, 2>(*quantized, "quantized", in.shape).data;
    require_multiple("the width of quantized rows", in.shape[1], 32);
  }
  nb::gil_scoped_release release;
  rms_norm<T>(in.data, reinterpret_cast<const uint8_t*>(w.data), out.data, in.shape[0], in.shape[1], eps,
              second);
}

}  // namespace

void bind_norm(nb::module_& m) {
  m.def(
      "rms_norm",
      [](View x, View weight, View y, float eps, std::optional<View> quantized) {
        is<bf16>(x) ? call<bf16>(x, weight, y, eps, quantized) : call<float>(x, weight, y, eps, quantized);
      },
      nb::arg("x"), nb::arg("weight"), nb::arg("y"), nb::arg("eps"), nb::arg("quantized").none());
}

}  // namespace di::bind
