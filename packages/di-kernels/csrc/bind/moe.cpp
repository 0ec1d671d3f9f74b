#include "cpu/moe.hpp"

#include "bind/weight.hpp"
#include "cpu/range.hpp"

namespace di::bind {
namespace {

// Appends one expert; all matrices of a bank have one format and layout, all experts the same shape.
void add_expert(ExpertBank& bank, const Weight& w1, const Weight& w3, const Weight& w2) {
  if (bank.size() == 0) {
    bank.dim = w1.k;
    bank.inter = w1.n;
  }
  const auto agrees = [](const Weight& w, int64_t n, int64_t k) { return w.n == n && w.k == k; };
  require(agrees(w1, bank.inter, bank.dim) && agrees(w3, bank.inter, bank.dim) &&
              agrees(w2, bank.dim, bank.inter),
          "experts: the shapes of w1, w3 and w2 do not agree");
  const Weight& first = bank.size() == 0 ? w1 : bank.w1.front();
  for (const Weight* w : {&w1, &w3, &w2}) {
    require(w->format == first.format && w->packed == first.packed,
            "experts: all weights must have one format, and be packed or none of them");
  }
  bank.w1.push_back(w1);
  bank.w3.push_back(w3);
  bank.w2.push_back(w2);
}

template <class T>
void call_experts(const ExpertBank& bank, const View& x, const View& ids, const std::optional<View>& weights,
                  float limit, bool quantize_input, const View& y) {
  const auto in = dense<T, 2>(x, "x");
  const auto id = dense<int32_t, 2>(ids, "ids");
  const auto out = dense<T, 3>(y, "y");
  const int64_t rows = in.shape[0], slots = id.shape[1];
  require(in.shape[1] == bank.dim, "experts: the width of x is not that of the experts");
  require(id.shape[0] == rows && out.shape[0] == rows && out.shape[1] == slots && out.shape[2] == bank.dim,
          "experts: shapes do not agree");
  require(!quantize_input || (bank.dim % 32 == 0 && bank.inter % 32 == 0),
          "experts: quantized inputs must hold whole groups of 32");
  const float* weight = nullptr;
  if (weights.has_value()) {
    const auto array = dense<float, 2>(*weights, "weights");
    require(array.shape == id.shape, "experts: weights and ids must have one shape");
    weight = array.data;
  }
  for (int64_t i = 0; i < rows * slots; ++i) {
    if (id.data[i] >= bank.size()) throw_out_of_range("expert id", i / slots, id.data[i], 0, bank.size());
  }
  nb::gil_scoped_release release;
  run_experts<T>(bank, in.data, id.data, weight, rows, slots, limit, quantize_input, out.data);
}

}  // namespace

void bind_moe(nb::module_& m) {
  using MaybeView = std::optional<View>;
  nb::class_<ExpertBank>(m, "ExpertBank")
      .def(nb::init<>())
      .def("__len__", &ExpertBank::size)
      .def("add", [](ExpertBank& bank, nb::tuple w1, nb::tuple w3, nb::tuple w2) {
        add_expert(bank, weight_of(w1, "w1"), weight_of(w3, "w3"), weight_of(w2, "w2"));
      });
  m.def(
      "experts",
      [](const ExpertBank& bank, View x, View ids, MaybeView weights, float limit, bool quantize_input,
         View y) {
        is<bf16>(x) ? call_experts<bf16>(bank, x, ids, weights, limit, quantize_input, y)
                    : call_experts<float>(bank, x, ids, weights, limit, quantize_input, y);
      },
      nb::arg("bank"), nb::arg("x"), nb::arg("ids"), nb::arg("weights").none(), nb::arg("limit"),
      nb::arg("quantize_input"), nb::arg("y"));
}

}  // namespace di::bind
