#include "cpu/norm.hpp"

#include "bind/tensor.hpp"

namespace di::bind {
namespace {

template <class T>
void call(const View& x, const View& weight, const View& y, float eps) {
  const auto in = dense<T, 2>(x, "x");
  const auto out = dense<T, 2>(y, "y");
  const auto w = dense<float, 1>(weight, "weight");
  require(w.shape[0] == in.shape[1] && out.shape == in.shape, "rms_norm: shapes do not agree");
  nb::gil_scoped_release release;
  rms_norm<T>(in.data, reinterpret_cast<const uint8_t*>(w.data), out.data, in.shape[0], in.shape[1], eps);
}

}  // namespace

void bind_norm(nb::module_& m) {
  m.def("rms_norm", [](View x, View weight, View y, float eps) {
    is<bf16>(x) ? call<bf16>(x, weight, y, eps) : call<float>(x, weight, y, eps);
  });
}

}  // namespace di::bind
