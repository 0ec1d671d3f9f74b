#include "cpu/route.hpp"

#include "bind/tensor.hpp"

namespace di::bind {
namespace {

void call_route(const View& logits, const View& bias, float scale, const View& ids, const View& weights) {
  const auto in = dense<float, 2>(logits, "logits");
  const int64_t count = in.shape[0], experts = in.shape[1];
  const auto id = dense<int32_t, 2>(ids, "ids", {count, kAny});
  const auto weight = dense<float, 2>(weights, "weights", id.shape);
  const auto offset = rows<float, 2>(bias, "bias", {count, experts});
  const int64_t top_k = id.shape[1];
  require(top_k <= experts, "route: top_k must not exceed the number of experts");
  nb::gil_scoped_release release;
  route(in.data, reinterpret_cast<const uint8_t*>(offset.data), offset.stride[0] * 4, count, experts, top_k,
        scale, id.data, weight.data);
}

template <class T>
void call_combine(const View& shared, const View& routed, const View& y) {
  const auto base = dense<T, 2>(shared, "shared");
  const auto add = dense<T, 3>(routed, "routed", {base.shape[0], kAny, base.shape[1]});
  const auto out = dense<T, 2>(y, "y", base.shape);
  nb::gil_scoped_release release;
  combine<T>(base.data, add.data, out.data, base.shape[0], add.shape[1], base.shape[1]);
}

}  // namespace

void bind_route(nb::module_& m) {
  m.def("route", &call_route);
  m.def("combine", [](View shared, View routed, View y) {
    is<bf16>(shared) ? call_combine<bf16>(shared, routed, y) : call_combine<float>(shared, routed, y);
  });
}

}  // namespace di::bind
