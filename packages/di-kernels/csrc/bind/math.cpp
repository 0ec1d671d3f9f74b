#include "simd/math.hpp"

#include "bind/tensor.hpp"
#include "parallel.hpp"

namespace di::bind {

void bind_math(nb::module_& m) {
  const auto define = [&](const char* name, auto member) {
    m.def(name, [member](View x, View y) {
      const auto in = dense<float, 1>(x, "x");
      const auto out = dense<float, 1>(y, "y", in.shape);
      const DefaultArithmetic arithmetic;
      (math_simd::active().*member)(in.data, in.shape[0], out.data);
    });
  };
  define("exp", &math_simd::Table::exp);
  define("log", &math_simd::Table::log);
  define("log1p", &math_simd::Table::log1p);
  define("sigmoid", &math_simd::Table::sigmoid);
}

}  // namespace di::bind
