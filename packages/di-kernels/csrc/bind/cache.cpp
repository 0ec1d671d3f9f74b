#include "cpu/cache.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "bind/records.hpp"
#include "cpu/range.hpp"

namespace di::bind {
namespace {

struct Places {
  const int32_t *outer = nullptr, *inner = nullptr;
};

// Rows of the arrays that records go to, each within `grid`; without them, row r goes to (0, r).
Places places(const std::optional<std::tuple<View, View>>& at, int64_t rows, int64_t outer, int64_t inner) {
  if (!at.has_value()) {
    require(outer == 1 && inner == rows, "store_keys: there must be one record for each row");
    return {};
  }
  const auto block = dense<int32_t, 1>(std::get<0>(*at), "block", {rows});
  const auto entry = dense<int32_t, 1>(std::get<1>(*at), "entry", {rows});
  for (int64_t r = 0; r < rows; ++r) {
    require_range("block", r, block.data[r], 0, outer);
    require_range("entry", r, entry.data[r], 0, inner);
  }
  return {block.data, entry.data};
}

template <class E>
RecordTarget target_of(const View& values, const std::optional<View>& scales, RecordFormat format,
                       int64_t dim, int64_t rows, const std::optional<std::tuple<View, View>>& at) {
  require_multiple("the dimension of a record", dim, record_group(format));
  const auto grid = bind::rows<E, 3>(values, "values");
  constexpr int64_t size = sizeof(E);
  const int64_t behind = scales.has_value() ? 0 : scale_bytes(format, dim);
  require_width("values", grid.shape[2], (value_bytes(format, dim) + behind) / size);
  RecordTarget target{format,
                      reinterpret_cast<uint8_t*>(grid.data),
                      grid.stride[0] * size,
                      grid.stride[1] * size,
                      nullptr,
                      0,
                      0,
                      nullptr,
                      nullptr};
  if (scales.has_value()) {
    require(!is_plain(format), "store_keys: plain values have no scales");
    const auto other =
        bind::rows<uint8_t, 3>(*scales, "scales", {grid.shape[0], grid.shape[1], scale_bytes(format, dim)});
    target.scales = other.data;
    target.scale_outer_stride = other.stride[0];
    target.scale_inner_stride = other.stride[1];
  }
  const Places where = places(at, rows, grid.shape[0], grid.shape[1]);
  target.outer = where.outer;
  target.inner = where.inner;
  return target;
}

template <class T>
void call_store(const View& x, const View& weight, float eps, const View& positions, const View& table,
                const std::string& format_name, const View& values, const std::optional<View>& scales,
                const std::optional<std::tuple<View, View>>& at, const std::optional<View>& normalised) {
  const auto in = dense<T, 2>(x, "x");
  const int64_t rows = in.shape[0], dim = in.shape[1];
  const auto w = dense<float, 1>(weight, "weight", {dim});
  const auto position = dense<int32_t, 1>(positions, "positions", {rows});
  const auto angles = dense<float, 2>(table, "table");
  require(angles.shape[1] % 2 == 0 && angles.shape[1] <= dim,
          "store_keys: the table must hold an even number of columns, at most the width");
  for (int64_t r = 0; r < rows; ++r) require_range("position", r, position.data[r], 0, angles.shape[0]);
  const RecordFormat format = record_format(format_name);
  const auto target = format == RecordFormat::float32 ? target_of<float> : target_of<uint8_t>;
  const RecordTarget where = target(values, scales, format, dim, rows, at);
  T* latent = nullptr;
  if (normalised.has_value()) {
    latent = dense<T, 2>(*normalised, "normalised", in.shape).data;
  }
  nb::gil_scoped_release release;
  store_keys<T>(in.data, rows, dim, {reinterpret_cast<const uint8_t*>(w.data), eps},
                {angles.data, angles.shape[1], position.data}, where, latent);
}

}  // namespace

void bind_cache(nb::module_& m) {
  m.def(
      "store_keys",
      [](View x, View weight, float eps, View positions, View table, std::string format, View values,
         std::optional<View> scales, std::optional<std::tuple<View, View>> at,
         std::optional<View> normalised) {
        const auto call = is<bf16>(x) ? call_store<bf16> : call_store<float>;
        call(x, weight, eps, positions, table, format, values, scales, at, normalised);
      },
      nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("positions"), nb::arg("table"),
      nb::arg("format"), nb::arg("values"), nb::arg("scales").none(), nb::arg("at").none(),
      nb::arg("normalised").none());
}

}  // namespace di::bind
