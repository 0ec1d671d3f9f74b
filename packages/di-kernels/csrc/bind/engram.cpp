#include "bind/engram.hpp"

#include <algorithm>

#include "bind/weight.hpp"
#include "cpu/range.hpp"

namespace di::bind {
namespace {

void call_windows(const View& tokens, const View& vocabulary, int64_t pad, const View& windows) {
  const auto in = dense<int32_t, 2>(tokens, "tokens");
  const auto map = dense<int32_t, 1>(vocabulary, "vocabulary");
  const auto out = dense<int64_t, 2>(windows, "windows");
  require(out.shape == in.shape, "engram_windows: shapes do not agree");
  nb::gil_scoped_release release;
  engram_windows(in.data, in.shape[0], in.shape[1], reinterpret_cast<const uint8_t*>(map.data), map.shape[0],
                 pad, out.data);
}

void call_hash(const View& windows, const View& multipliers, const View& primes, const View& offsets,
               const View& ids) {
  const auto in = dense<int64_t, 2>(windows, "windows");
  const auto factor = dense<int64_t, 1>(multipliers, "multipliers");
  const auto prime = dense<int64_t, 2>(primes, "primes");
  const auto offset = dense<int64_t, 1>(offsets, "offsets");
  const auto out = dense<int64_t, 2>(ids, "ids");
  const int64_t n = factor.shape[0], heads = prime.shape[1], columns = prime.shape[0] * heads;
  require(n >= 1 && in.shape[1] == n && prime.shape[0] == n - 1,
          "engram_hash: windows, multipliers and primes differ in n");
  require(offset.shape[0] == columns && out.shape[0] == in.shape[0] && out.shape[1] == columns,
          "engram_hash: shapes do not agree");
  require(std::all_of(prime.data, prime.data + columns, [](int64_t p) { return p > 0; }),
          "primes must be positive");
  nb::gil_scoped_release release;
  engram_hash(in.data, in.shape[0], {factor.data, prime.data, offset.data, n, heads}, out.data);
}

template <class T>
void call_gather(const View& ids, const EngramTable& table, const View& y) {
  const auto id = dense<int64_t, 2>(ids, "ids");
  const auto out = dense<T, 2>(y, "y");
  const int64_t columns = id.shape[1], count = id.shape[0] * columns;
  require(out.shape[0] == id.shape[0] && out.shape[1] == columns * table.values.k,
          "engram_gather: shapes do not agree");
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
  const auto looked_up = dense<T, 2>(kv, "kv");
  const auto w = dense<float, 2>(weight, "weight");
  const auto on = dense<bool, 1>(active, "active");
  const auto result = dense<T, 3>(out, "out");
  const int64_t rows = in.shape[0], m = in.shape[1], dim = in.shape[2];
  require(result.shape == in.shape && looked_up.shape[0] == rows && looked_up.shape[1] == (m + 1) * dim &&
              w.shape[0] == m && w.shape[1] == dim && on.shape[0] == rows,
          "engram_inject: shapes do not agree");
  nb::gil_scoped_release release;
  engram_inject<T>(in.data, looked_up.data, w.data, on.data, eps, rows, m, dim, result.data);
}

}  // namespace

EngramTable borrow_engram_table(const View& data, const std::optional<View>& scale) {
  if (!scale.has_value()) {
    const auto format = is<bf16>(data) ? WeightFormat::bfloat16 : WeightFormat::float32;
    return {borrow_weight(static_cast<int>(format), data, std::nullopt), nullptr, 0};
  }
  const auto codes = rows<uint8_t, 2>(data, "table data");
  const auto scales = rows<uint8_t, 2>(*scale, "table scale");
  require(
      codes.shape[1] % 32 == 0 && scales.shape[0] == codes.shape[0] && scales.shape[1] == codes.shape[1] / 32,
      "table data and table scale: shapes do not agree");
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
