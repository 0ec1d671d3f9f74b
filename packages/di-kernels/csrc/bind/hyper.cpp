#include "cpu/hyper.hpp"

#include <nanobind/stl/tuple.h>

#include <vector>

#include "bind/weight.hpp"

namespace di::bind {
namespace {

void require_columns(const Weight& fn, int64_t expected) {
  if (fn.k == expected) return;
  throw nb::value_error(
      ("fn has " + std::to_string(fn.k) + " columns; expected streams x width, " + std::to_string(expected))
          .c_str());
}

const uint8_t* bytes(const float* p) { return reinterpret_cast<const uint8_t*>(p); }

template <class T>
void call_project(const View& stream, const View& fn, float eps, const View& z) {
  const auto in = dense<T, 3>(stream, "stream");
  const Weight weight = borrow_weight(WeightFormat::float32, fn);
  require_columns(weight, in.shape[1] * in.shape[2]);
  const auto out = dense<float, 2>(z, "z", {in.shape[0], weight.n});
  nb::gil_scoped_release release;
  hyper_project<T>(in.data, in.shape[0], weight, eps, out.data);
}

void call_coefficients(const View& z, const View& base, const View& scale, float hc_eps, int sinkhorn_iters,
                       const View& pre, const View& post, const View& comb) {
  const auto in = dense<float, 2>(z, "z");
  const auto before = dense<float, 2>(pre, "pre", {in.shape[0], kAny});
  const int64_t rows = in.shape[0], m = before.shape[1];
  require(m >= 1, "pre has no columns; it must have one a stream");
  require_shape(in, "z", {rows, m * (m + 2)});
  const auto offsets = dense<float, 1>(base, "base", {m * (m + 2)});
  const auto factors = dense<float, 1>(scale, "scale", {3});
  const auto after = dense<float, 2>(post, "post", {rows, m});
  const auto mixing = dense<float, 3>(comb, "comb", {rows, m, m});
  require(sinkhorn_iters >= 1, "sinkhorn_iters must be at least 1");
  nb::gil_scoped_release release;
  hyper_coefficients(in.data, rows, m, {bytes(offsets.data), bytes(factors.data), hc_eps, sinkhorn_iters},
                     {before.data, after.data, mixing.data});
}

template <class T>
void call_pre(const View& stream, const View& pre, const View& y) {
  const auto in = dense<T, 3>(stream, "stream");
  const int64_t rows = in.shape[0], m = in.shape[1], dim = in.shape[2];
  require(m >= 1, "stream has no streams; it must have at least 1");
  const auto factors = dense<float, 2>(pre, "pre", {rows, m});
  const auto out = dense<T, 2>(y, "y", {rows, dim});
  nb::gil_scoped_release release;
  hyper_pre<T>(in.data, factors.data, out.data, rows, m, dim);
}

template <class T>
void call_post(const View& stream, const View& y, const View& post, const View& comb, const View& out) {
  const auto in = dense<T, 3>(stream, "stream");
  const int64_t rows = in.shape[0], m = in.shape[1], dim = in.shape[2];
  const auto added = dense<T, 2>(y, "y", {rows, dim});
  const auto factors = dense<float, 2>(post, "post", {rows, m});
  const auto mixing = dense<float, 3>(comb, "comb", {rows, m, m});
  const auto result = dense<T, 3>(out, "out", in.shape);
  nb::gil_scoped_release release;
  hyper_post<T>(in.data, added.data, factors.data, mixing.data, result.data, rows, m, dim);
}

template <class T>
void call_enter(const View& stream, const View& pre, const View& fn, const View& base, const View& scale,
                float eps, float hc_eps, int sinkhorn_iters, const View& norm_weight, float norm_eps,
                const std::tuple<View, View, View>& mixes, const View& x,
                const std::optional<View>& quantized) {
  const auto in = dense<T, 3>(stream, "stream");
  const int64_t rows = in.shape[0], m = in.shape[1], dim = in.shape[2];
  const Weight weight = borrow_weight(WeightFormat::float32, fn);
  require(m >= 1, "stream has no streams; it must have at least 1");
  require_columns(weight, m * dim);
  const auto offsets = dense<float, 1>(base, "base", {m * (m + 2)});
  require(weight.n == offsets.shape[0], "fn must have as many rows as base has elements");
  const auto factors = dense<float, 1>(scale, "scale", {3});
  const std::array<int64_t, 2> narrow{rows, m}, wide{rows, dim};
  const auto before = dense<float, 2>(pre, "pre", narrow);
  const auto norm = dense<float, 1>(norm_weight, "norm_weight", {dim});
  const auto pre_out = dense<float, 2>(std::get<0>(mixes), "mixes.pre", narrow);
  const auto post_out = dense<float, 2>(std::get<1>(mixes), "mixes.post", narrow);
  const auto comb_out = dense<float, 3>(std::get<2>(mixes), "mixes.comb", {rows, m, m});
  const auto out = dense<T, 2>(x, "x", wide);
  require(sinkhorn_iters >= 1, "sinkhorn_iters must be at least 1");
  T* second = nullptr;
  if (quantized.has_value()) {
    second = dense<T, 2>(*quantized, "quantized", wide).data;
    require_multiple("the width of quantized rows", dim, 32);
  }
  nb::gil_scoped_release release;
  std::vector<float> scratch(static_cast<size_t>(rows * (m * (m + 2) + 1)));
  hyper_enter<T>(in.data, rows, m, dim, weight, eps,
                 {bytes(offsets.data), bytes(factors.data), hc_eps, sinkhorn_iters}, before.data,
                 {bytes(norm.data), norm_eps}, scratch.data(), {pre_out.data, post_out.data, comb_out.data},
                 out.data, second);
}

template <class T>
void call_post_combined(const View& stream, const View& shared, const View& routed, const View& post,
                        const View& comb, const View& out) {
  const auto in = dense<T, 3>(stream, "stream");
  const int64_t rows = in.shape[0], m = in.shape[1], dim = in.shape[2];
  const auto base = dense<T, 2>(shared, "shared", {rows, dim});
  const auto add = dense<T, 3>(routed, "routed", {rows, kAny, dim});
  const auto factors = dense<float, 2>(post, "post", {rows, m});
  const auto mixing = dense<float, 3>(comb, "comb", {rows, m, m});
  const auto result = dense<T, 3>(out, "out", in.shape);
  const int64_t slots = add.shape[1];
  nb::gil_scoped_release release;
  hyper_post_combined<T>(in.data, base.data, add.data, slots, factors.data, mixing.data, result.data, rows, m,
                         dim);
}

template <class T>
void call_mean(const View& stream, const View& y) {
  const auto in = dense<T, 3>(stream, "stream");
  require(in.shape[1] >= 1, "stream has no streams; it must have at least 1");
  const auto out = dense<T, 2>(y, "y", {in.shape[0], in.shape[2]});
  nb::gil_scoped_release release;
  stream_mean<T>(in.data, out.data, in.shape[0], in.shape[1], in.shape[2]);
}

}  // namespace

void bind_hyper(nb::module_& m) {
  m.def("hyper_project", [](View stream, View fn, float eps, View z) {
    is<bf16>(stream) ? call_project<bf16>(stream, fn, eps, z) : call_project<float>(stream, fn, eps, z);
  });
  m.def("hyper_coefficients", &call_coefficients);
  m.def("hyper_pre", [](View stream, View pre, View y) {
    is<bf16>(stream) ? call_pre<bf16>(stream, pre, y) : call_pre<float>(stream, pre, y);
  });
  m.def("hyper_post", [](View stream, View y, View post, View comb, View out) {
    is<bf16>(stream) ? call_post<bf16>(stream, y, post, comb, out)
                     : call_post<float>(stream, y, post, comb, out);
  });
  m.def(
      "hyper_enter",
      [](View stream, View pre, View fn, View base, View scale, float eps, float hc_eps, int sinkhorn_iters,
         View norm_weight, float norm_eps, std::tuple<View, View, View> mixes, View x,
         std::optional<View> quantized) {
        const auto call = is<bf16>(stream) ? call_enter<bf16> : call_enter<float>;
        call(stream, pre, fn, base, scale, eps, hc_eps, sinkhorn_iters, norm_weight, norm_eps, mixes, x,
             quantized);
      },
      nb::arg("stream"), nb::arg("pre"), nb::arg("fn"), nb::arg("base"), nb::arg("scale"), nb::arg("eps"),
      nb::arg("hc_eps"), nb::arg("sinkhorn_iters"), nb::arg("norm_weight"), nb::arg("norm_eps"),
      nb::arg("mixes"), nb::arg("x"), nb::arg("quantized").none());
  m.def("hyper_post_combined", [](View stream, View shared, View routed, View post, View comb, View out) {
    is<bf16>(stream) ? call_post_combined<bf16>(stream, shared, routed, post, comb, out)
                     : call_post_combined<float>(stream, shared, routed, post, comb, out);
  });
  m.def("stream_mean", [](View stream, View y) {
    is<bf16>(stream) ? call_mean<bf16>(stream, y) : call_mean<float>(stream, y);
  });
}

}  // namespace di::bind
