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
  const auto require_size = [](const char* name, const Weight& w, int64_t n, int64_t k) {
    if (w.n == n && w.k == k) return;
    throw nb::value_error((std::string(name) + " of an expert is " + shape_text(std::array{w.n, w.k}) +
                           "; expected " + shape_text(std::array{n, k}))
                              .c_str());
  };
  require_size("w1", w1, bank.inter, bank.dim);
  require_size("w3", w3, bank.inter, bank.dim);
  require_size("w2", w2, bank.dim, bank.inter);
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
  const auto in = dense<T, 2>(x, "x", {kAny, bank.dim});
  const auto id = dense<int32_t, 2>(ids, "ids", {in.shape[0], kAny});
  const int64_t rows = in.shape[0], slots = id.shape[1];
  const auto out = dense<T, 3>(y, "y", {rows, slots, bank.dim});
  if (quantize_input) {
    require_multiple("the width of quantized inputs", bank.dim, 32);
    require_multiple("the width of quantized activations", bank.inter, 32);
  }
  const float* weight = nullptr;
  if (weights.has_value()) weight = dense<float, 2>(*weights, "weights", id.shape).data;
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
