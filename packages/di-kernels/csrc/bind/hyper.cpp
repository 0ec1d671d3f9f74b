#include "cpu/hyper.hpp"

#include <nanobind/stl/tuple.h>

#include <vector>

#include "bind/weight.hpp"

namespace di::bind {
namespace {

const uint8_t* bytes(const float* p) { return reinterpret_cast<const uint8_t*>(p); }

template <class T>
void call_project(const View& stream, const View& fn, float eps, const View& z) {
  const auto in = dense<T, 3>(stream, "stream");
  const Weight weight = borrow_weight(static_cast<int>(WeightFormat::float32), fn, std::nullopt);
  const auto out = dense<float, 2>(z, "z");
  require(weight.k == in.shape[1] * in.shape[2] && out.shape[0] == in.shape[0] && out.shape[1] == weight.n,
          "hyper_project: shapes do not agree");
  nb::gil_scoped_release release;
  hyper_project<T>(in.data, in.shape[0], weight, eps, out.data);
}

void call_coefficients(const View& z, const View& base, const View& scale, float hc_eps, int sinkhorn_iters,
                       const View& pre, const View& post, const View& comb) {
  const auto in = dense<float, 2>(z, "z");
  const auto offsets = dense<float, 1>(base, "base");
  const auto factors = dense<float, 1>(scale, "scale");
  const auto before = dense<float, 2>(pre, "pre");
  const auto after = dense<float, 2>(post, "post");
  const auto mixing = dense<float, 3>(comb, "comb");
  const int64_t rows = in.shape[0], m = before.shape[1];
  require(m >= 1 && in.shape[1] == m * (m + 2) && offsets.shape[0] == m * (m + 2) && factors.shape[0] == 3,
          "hyper_coefficients: z and base must have m(m+2) columns, scale 3");
  require(before.shape[0] == rows && after.shape == before.shape && mixing.shape[0] == rows &&
              mixing.shape[1] == m && mixing.shape[2] == m,
          "hyper_coefficients: shapes do not agree");
  require(sinkhorn_iters >= 1, "sinkhorn_iters must be at least 1");
  nb::gil_scoped_release release;
  hyper_coefficients(in.data, rows, m, {bytes(offsets.data), bytes(factors.data), hc_eps, sinkhorn_iters},
                     {before.data, after.data, mixing.data});
}

template <class T>
void call_pre(const View& stream, const View& pre, const View& y) {
  const auto in = dense<T, 3>(stream, "stream");
  const auto factors = dense<float, 2>(pre, "pre");
  const auto out = dense<T, 2>(y, "y");
  const int64_t rows = in.shape[0], m = in.shape[1], dim = in.shape[2];
  require(m >= 1 && factors.shape[0] == rows && factors.shape[1] == m && out.shape[0] == rows &&
              out.shape[1] == dim,
          "hyper_pre: shapes do not agree");
  nb::gil_scoped_release release;
  hyper_pre<T>(in.data, factors.data, out.data, rows, m, dim);
}

template <class T>
void call_post(const View& stream, const View& y, const View& post, const View& comb, const View& out) {
  const auto in = dense<T, 3>(stream, "stream");
  const auto added = dense<T, 2>(y, "y");
  const auto factors = dense<float, 2>(post, "post");
  const auto mixing = dense<float, 3>(comb, "comb");
  const auto result = dense<T, 3>(out, "out");
  const int64_t rows = in.shape[0], m = in.shape[1], dim = in.shape[2];
  require(result.shape == in.shape && added.shape[0] == rows && added.shape[1] == dim &&
              factors.shape[0] == rows && factors.shape[1] == m && mixing.shape[0] == rows &&
              mixing.shape[1] == m && mixing.shape[2] == m,
          "hyper_post: shapes do not agree");
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
  const Weight weight = borrow_weight(static_cast<int>(WeightFormat::float32), fn, std::nullopt);
  const auto offsets = dense<float, 1>(base, "base");
  const auto factors = dense<float, 1>(scale, "scale");
  const auto before = dense<float, 2>(pre, "pre");
  const auto norm = dense<float, 1>(norm_weight, "norm_weight");
  const auto pre_out = dense<float, 2>(std::get<0>(mixes), "mixes.pre");
  const auto post_out = dense<float, 2>(std::get<1>(mixes), "mixes.post");
  const auto comb_out = dense<float, 3>(std::get<2>(mixes), "mixes.comb");
  const auto out = dense<T, 2>(x, "x");
  require(m >= 1 && weight.n == m * (m + 2) && weight.k == m * dim && offsets.shape[0] == m * (m + 2) &&
              factors.shape[0] == 3,
          "hyper_enter: fn and base must have m(m+2) rows, fn m*dim columns, scale 3");
  const std::array<int64_t, 2> narrow{rows, m}, wide{rows, dim};
  require(before.shape == narrow && pre_out.shape == narrow && post_out.shape == narrow &&
              comb_out.shape == std::array<int64_t, 3>{rows, m, m} && out.shape == wide &&
              norm.shape[0] == dim,
          "hyper_enter: shapes do not agree");
  require(sinkhorn_iters >= 1, "sinkhorn_iters must be at least 1");
  T* second = nullptr;
  if (quantized.has_value()) {
    const auto array = dense<T, 2>(*quantized, "quantized");
    require(array.shape == wide && dim % 32 == 0, "hyper_enter: quantized rows must hold whole groups of 32");
    second = array.data;
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
  const auto base = dense<T, 2>(shared, "shared");
  const auto add = dense<T, 3>(routed, "routed");
  const auto factors = dense<float, 2>(post, "post");
  const auto mixing = dense<float, 3>(comb, "comb");
  const auto result = dense<T, 3>(out, "out");
  const int64_t rows = in.shape[0], m = in.shape[1], dim = in.shape[2], slots = add.shape[1];
  require(result.shape == in.shape && base.shape == std::array<int64_t, 2>{rows, dim} &&
              add.shape == std::array<int64_t, 3>{rows, slots, dim} &&
              factors.shape == std::array<int64_t, 2>{rows, m} &&
              mixing.shape == std::array<int64_t, 3>{rows, m, m},
          "hyper_post_combined: shapes do not agree");
  nb::gil_scoped_release release;
  hyper_post_combined<T>(in.data, base.data, add.data, slots, factors.data, mixing.data, result.data, rows, m,
                         dim);
}

template <class T>
void call_mean(const View& stream, const View& y) {
  const auto in = dense<T, 3>(stream, "stream");
  const auto out = dense<T, 2>(y, "y");
  require(in.shape[1] >= 1 && out.shape[0] == in.shape[0] && out.shape[1] == in.shape[2],
          "stream_mean: shapes do not agree");
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
