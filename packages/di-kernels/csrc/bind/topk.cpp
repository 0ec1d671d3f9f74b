#include "cpu/topk.hpp"

#include "bind/tensor.hpp"

namespace di::bind {
namespace {

template <class T>
void call(const View& scores, const View& lengths, const View& out) {
  const auto s = rows<T, 2>(scores, "scores");
  const auto l = dense<int32_t, 1>(lengths, "lengths", {s.shape[0]});
  const auto o = dense<int32_t, 2>(out, "out", {s.shape[0], kAny});
  require(o.shape[1] >= 1, "topk_indices: k must be at least 1");
  nb::gil_scoped_release release;
  topk_indices<T>(s.data, s.stride[0], s.shape[0], s.shape[1], l.data, o.shape[1], o.data);
}

}  // namespace

void bind_topk(nb::module_& m) {
  m.def("topk_indices", [](View scores, View lengths, View out) {
    is<bf16>(scores) ? call<bf16>(scores, lengths, out) : call<float>(scores, lengths, out);
  });
}

}  // namespace di::bind
