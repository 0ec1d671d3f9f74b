#include "cpu/embedding.hpp"

#include "bind/weight.hpp"

namespace di::bind {
namespace {

template <class T>
void call(const View& ids, const Weight& table, const View& y) {
  const auto id = dense<int32_t, 1>(ids, "ids");
  const auto out = dense<T, 2>(y, "y", {id.shape[0], table.k});
  nb::gil_scoped_release release;
  embed<T>(id.data, id.shape[0], table, out.data);
}

}  // namespace

void bind_embedding(nb::module_& m) {
  m.def("embed", [](View ids, View table, View y) {
    const Weight weight = borrow_numbers(table);
    is<bf16>(y) ? call<bf16>(ids, weight, y) : call<float>(ids, weight, y);
  });
}

}  // namespace di::bind
