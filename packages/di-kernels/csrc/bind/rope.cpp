#include "cpu/rope.hpp"

#include "bind/tensor.hpp"
#include "cpu/range.hpp"

namespace di::bind {
namespace {

template <class T>
void call(const View& x, const View& positions, const View& table, const View& y, bool inverse) {
  const auto in = dense<T, 3>(x, "x");
  const auto position = dense<int32_t, 1>(positions, "positions", {in.shape[0]});
  const auto angles = dense<float, 2>(table, "table");
  const auto out = dense<T, 3>(y, "y", in.shape);
  const int64_t rows = in.shape[0], dim = angles.shape[1];
  require(dim % 2 == 0 && dim <= in.shape[2],
          "apply_rope: the table must hold an even number of columns, at most the width");
  for (int64_t r = 0; r < rows; ++r) require_range("position", r, position.data[r], 0, angles.shape[0]);
  nb::gil_scoped_release release;
  apply_rope<T>(in.data, position.data, angles.data, out.data, rows, in.shape[1], in.shape[2], dim, inverse);
}

}  // namespace

void bind_rope(nb::module_& m) {
  m.def("apply_rope", [](View x, View positions, View table, View y, bool inverse) {
    is<bf16>(x) ? call<bf16>(x, positions, table, y, inverse) : call<float>(x, positions, table, y, inverse);
  });
}

}  // namespace di::bind
