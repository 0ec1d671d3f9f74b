#include "cpu/formats.hpp"

#include "bind/tensor.hpp"

namespace di::bind {
namespace {

GroupFormat group_format(int value) {
  require(value >= 0 && value <= 2, "format must be 0 (FP8), 1 (FP4) or 2 (MXFP4)");
  return static_cast<GroupFormat>(value);
}

template <class T>
void call_encode(const View& x, const View& codes, const View& scales, GroupFormat format) {
  const auto in = dense<T, 2>(x, "x");
  const int64_t rows = in.shape[0], dim = in.shape[1];
  require_multiple("the last dimension of x", dim, group_size(format));
  const auto code = dense<uint8_t, 2>(codes, "codes", {rows, code_bytes(format, dim)});
  const auto scale = dense<uint8_t, 2>(scales, "scales", {rows, dim / group_size(format)});
  nb::gil_scoped_release release;
  encode<T>(format, in.data, rows, dim, code.data, scale.data);
}

template <class T>
void call_decode(const View& codes, const View& scales, const View& x, GroupFormat format) {
  const auto out = dense<T, 2>(x, "x");
  const int64_t count = out.shape[0], dim = out.shape[1];
  require_multiple("the last dimension of x", dim, group_size(format));
  const auto code = rows<uint8_t, 2>(codes, "codes", {count, code_bytes(format, dim)});
  const auto scale = rows<uint8_t, 2>(scales, "scales", {count, dim / group_size(format)});
  nb::gil_scoped_release release;
  decode<T>(format, code.data, code.stride[0], scale.data, scale.stride[0], count, dim, out.data);
}

template <class T>
void call_round_trip(const View& x, const View& y) {
  const auto in = dense<T, 2>(x, "x");
  const auto out = dense<T, 2>(y, "y", in.shape);
  require_multiple("the last dimension of x", in.shape[1], 32);
  nb::gil_scoped_release release;
  round_trip_fp8_rows<T>(in.data, in.shape[0], in.shape[1], out.data);
}

}  // namespace

void bind_formats(nb::module_& m) {
  m.def("encode", [](View x, View codes, View scales, int format) {
    is<bf16>(x) ? call_encode<bf16>(x, codes, scales, group_format(format))
                : call_encode<float>(x, codes, scales, group_format(format));
  });
  m.def("decode", [](View codes, View scales, View x, int format) {
    is<bf16>(x) ? call_decode<bf16>(codes, scales, x, group_format(format))
                : call_decode<float>(codes, scales, x, group_format(format));
  });
  m.def("round_trip_fp8",
        [](View x, View y) { is<bf16>(x) ? call_round_trip<bf16>(x, y) : call_round_trip<float>(x, y); });
}

}  // namespace di::bind
