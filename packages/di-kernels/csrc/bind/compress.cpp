#include "cpu/compress.hpp"

#include "bind/tensor.hpp"

namespace di::bind {
namespace {

template <class T>
void call(const View& fresh, const View& ring, const View& last, const View& first, const View& slot,
          const View& cell, const View& out) {
  const auto o = dense<T, 2>(out, "out");
  const int64_t pairs = o.shape[0], dim = o.shape[1];
  const auto f = rows<float, 3>(fresh, "fresh", {kAny, 2, dim});
  const auto r = rows<float, 4>(ring, "ring", {kAny, kAny, 2, dim});
  const auto l = dense<int32_t, 1>(last, "last", {pairs});
  const auto i = dense<int32_t, 1>(first, "first", {pairs});
  const auto s = dense<int32_t, 1>(slot, "slot", {pairs});
  const auto c = dense<int32_t, 1>(cell, "cell", {pairs});
  const PairStep step{f.data, f.shape[0], f.stride[0], f.stride[1]};
  const PairRing state{r.data, r.shape[0], r.shape[1], r.stride[0], r.stride[1], r.stride[2]};
  nb::gil_scoped_release release;
  compress_pairs<T>(step, state, PairRows{l.data, i.data, s.data, c.data, pairs}, dim, o.data);
}

}  // namespace

void bind_compress(nb::module_& m) {
  m.def("compress_pairs", [](View fresh, View ring, View last, View first, View slot, View cell, View out) {
    is<bf16>(out) ? call<bf16>(fresh, ring, last, first, slot, cell, out)
                  : call<float>(fresh, ring, last, first, slot, cell, out);
  });
}

}  // namespace di::bind
