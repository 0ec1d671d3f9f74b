#include "cpu/linear.hpp"

#include "bind/weight.hpp"

namespace di::bind {
namespace {

template <class TIn, class TOut>
void call_linear(const View& x, const Weight& weight, bool quantize_input, const View& y) {
  const auto in = dense<TIn, 2>(x, "x");
  const auto out = dense<TOut, 2>(y, "y");
  require(in.shape[1] == weight.k && out.shape[0] == in.shape[0] && out.shape[1] == weight.n,
          "linear: shapes do not agree");
  require(!quantize_input || weight.k % 32 == 0, "linear: quantized inputs must hold whole groups of 32");
  nb::gil_scoped_release release;
  linear<TIn, TOut>(in.data, in.shape[0], weight, quantize_input, out.data);
}

template <class T>
void call_grouped(const View& x, const Weight& weight, const View& y) {
  const auto in = dense<T, 3>(x, "x");
  const auto out = dense<T, 2>(y, "y");
  require(in.shape[1] > 0 && weight.n % in.shape[1] == 0,
          "grouped_linear: groups must divide the rows of the weight");
  require(in.shape[2] == weight.k && out.shape[0] == in.shape[0] && out.shape[1] == weight.n,
          "grouped_linear: shapes do not agree");
  nb::gil_scoped_release release;
  grouped_linear<T>(in.data, in.shape[0], in.shape[1], weight, out.data);
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def(
      "linear",
      [](View x, int format, View data, std::optional<View> scale, bool quantize_input, View y) {
        const Weight weight = borrow_weight(format, data, scale);
        const auto call = is<bf16>(x) ? (is<bf16>(y) ? call_linear<bf16, bf16> : call_linear<bf16, float>)
                                      : (is<bf16>(y) ? call_linear<float, bf16> : call_linear<float, float>);
        call(x, weight, quantize_input, y);
      },
      nb::arg("x"), nb::arg("format"), nb::arg("data"), nb::arg("scale").none(), nb::arg("quantize_input"),
      nb::arg("y"));
  m.def(
      "grouped_linear",
      [](View x, int format, View data, std::optional<View> scale, View y) {
        const Weight weight = borrow_weight(format, data, scale);
        is<bf16>(x) ? call_grouped<bf16>(x, weight, y) : call_grouped<float>(x, weight, y);
      },
      nb::arg("x"), nb::arg("format"), nb::arg("data"), nb::arg("scale").none(), nb::arg("y"));
}

}  // namespace di::bind
