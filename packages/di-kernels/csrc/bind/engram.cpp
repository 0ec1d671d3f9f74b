#include "bind/engram.hpp"

#include "bind/weight.hpp"
#include "cpu/range.hpp"

namespace di::bind {
namespace {

void call_windows(const View& tokens, const View& vocabulary, int64_t pad, const View& windows) {
  const auto in = dense<int32_t, 2>(tokens, "tokens");
  const auto map = dense<int32_t, 1>(vocabulary, "vocabulary");
  const auto out = dense<int64_t, 2>(windows, "windows", in.shape);
  nb::gil_scoped_release release;
  engram_windows(in.data, in.shape[0], in.shape[1], reinterpret_cast<const uint8_t*>(map.data), map.shape[0],
                 pad, out.data);
}

void call_hash(const View& windows, const View& multipliers, const View& primes, const View& offsets,
               const View& ids) {
  const auto in = dense<int64_t, 2>(windows, "windows");
  const int64_t n = in.shape[1];
  require(n >= 1, "windows has no columns; it must have at least 1");
  const auto factor = dense<int64_t, 1>(multipliers, "multipliers", {n});
  const auto prime = dense<int64_t, 2>(primes, "primes", {n - 1, kAny});
  const int64_t heads = prime.shape[1], columns = prime.shape[0] * heads;
  const auto offset = dense<int64_t, 1>(offsets, "offsets", {columns});
  const auto out = dense<int64_t, 2>(ids, "ids", {in.shape[0], columns});
  for (int64_t c = 0; c < columns; ++c) {
    if (prime.data[c] > 0) continue;
    throw nb::value_error(
        ("primes holds " + std::to_string(prime.data[c]) + "; allowed: at least 1").c_str());
  }
  nb::gil_scoped_release release;
  engram_hash(in.data, in.shape[0], {factor.data, prime.data, offset.data, n, heads}, out.data);
}

template <class T>
void call_gather(const View& ids, const EngramTable& table, const View& y) {
  const auto id = dense<int64_t, 2>(ids, "ids");
  const int64_t columns = id.shape[1], count = id.shape[0] * columns;
  const auto out = dense<T, 2>(y, "y", {id.shape[0], columns * table.values.k});
  for (int64_t i = 0; i < count; ++i) {
    if (id.data[i] >= table.values.n)
      throw_out_of_range("table id", i / columns, id.data[i], 0, table.values.n);
  }
  nb::gil_scoped_release release;
  engram_gather<T>(id.data, count, table, out.data);
}

template <class T>
void call_inject(const View& stream, const View& kv, const View& weight, const View& active, float eps,
                 const View& out) {
  const auto in = dense<T, 3>(stream, "stream");
  const int64_t rows = in.shape[0], m = in.shape[1], dim = in.shape[2];
  const auto looked_up = dense<T, 2>(kv, "kv", {rows, (m + 1) * dim});
  const auto w = dense<float, 2>(weight, "weight", {m, dim});
  const auto on = dense<bool, 1>(active, "active", {rows});
  const auto result = dense<T, 3>(out, "out", in.shape);
  nb::gil_scoped_release release;
  engram_inject<T>(in.data, looked_up.data, w.data, on.data, eps, rows, m, dim, result.data);
}

}  // namespace

EngramTable borrow_engram_table(const View& data, const std::optional<View>& scale) {
  if (!scale.has_value()) return {borrow_numbers(data), nullptr, 0};
  const auto codes = rows<uint8_t, 2>(data, "table data");
  require_multiple("the width of the table data", codes.shape[1], 32);
  const auto scales = rows<uint8_t, 2>(*scale, "table scale", {codes.shape[0], codes.shape[1] / 32});
  const Weight values{WeightFormat::fp8, codes.data,    codes.stride[0], nullptr, 0,
                      codes.shape[0],    codes.shape[1]};
  return {values, scales.data, scales.stride[0]};
}

void bind_engram(nb::module_& m) {
  m.def("engram_windows", &call_windows);
  m.def("engram_hash", &call_hash);
  m.def(
      "engram_gather",
      [](View ids, View data, std::optional<View> scale, View y) {
        const EngramTable table = borrow_engram_table(data, scale);
        is<bf16>(y) ? call_gather<bf16>(ids, table, y) : call_gather<float>(ids, table, y);
      },
      nb::arg("ids"), nb::arg("data"), nb::arg("scale").none(), nb::arg("y"));
  m.def("engram_inject", [](View stream, View kv, View weight, View active, float eps, View out) {
    is<bf16>(stream) ? call_inject<bf16>(stream, kv, weight, active, eps, out)
                     : call_inject<float>(stream, kv, weight, active, eps, out);
  });
}

}  // namespace di::bind
