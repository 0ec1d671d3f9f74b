#include "cpu/linear.hpp"

#include "bind/weight.hpp"
#include "cpu/pages.hpp"

namespace di::bind {
namespace {

template <class TIn, class TOut>
void call_linear(const View& x, const Weight& weight, bool quantize_input, const View& y) {
  const auto in = dense<TIn, 2>(x, "x", {kAny, weight.k});
  const auto out = dense<TOut, 2>(y, "y", {in.shape[0], weight.n});
  if (quantize_input) require_multiple("the width of quantized inputs", weight.k, 32);
  nb::gil_scoped_release release;
  linear<TIn, TOut>(in.data, in.shape[0], weight, quantize_input, out.data);
}

template <class T>
void call_grouped(const View& x, const Weight& weight, const View& y) {
  const auto in = dense<T, 3>(x, "x", {kAny, kAny, weight.k});
  const auto out = dense<T, 2>(y, "y", {in.shape[0], weight.n});
  require(in.shape[1] > 0 && weight.n % in.shape[1] == 0,
          "grouped_linear: groups must divide the rows of the weight");
  nb::gil_scoped_release release;
  grouped_linear<T>(in.data, in.shape[0], in.shape[1], weight, out.data);
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def("linear", [](View x, nb::tuple matrix, bool quantize_input, View y) {
    const Weight weight = weight_of(matrix, "weight");
    const auto call = is<bf16>(x) ? (is<bf16>(y) ? call_linear<bf16, bf16> : call_linear<bf16, float>)
                                  : (is<bf16>(y) ? call_linear<float, bf16> : call_linear<float, float>);
    call(x, weight, quantize_input, y);
  });
  m.def("grouped_linear", [](View x, nb::tuple matrix, View y) {
    const Weight weight = weight_of(matrix, "weight");
    is<bf16>(x) ? call_grouped<bf16>(x, weight, y) : call_grouped<float>(x, weight, y);
  });
  m.def("packed_group_bytes", [](int format, int64_t k) {
    require(format >= 0 && format <= 3 && k >= 0, "format must be 0 to 3, k not negative");
    return group_bytes(static_cast<WeightFormat>(format), k);
  });
  m.def("pack_weight", [](nb::tuple matrix, View out) {
    const Weight weight = weight_of(matrix, "weight");
    require(!weight.packed, "the weight is packed already");
    const auto target =
        dense<uint8_t, 2>(out, "out", {groups_of(weight.n), group_bytes(weight.format, weight.k)});
    nb::gil_scoped_release release;
    pack(weight, target.data);
  });
  m.def("advise_pages", [](View buffer) {
    const auto array = dense<uint8_t, 1>(buffer, "buffer");
    advise_pages(array.data, array.shape[0]);
  });
}

}  // namespace di::bind
