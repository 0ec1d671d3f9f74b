#include "cpu/attention.hpp"

#include <nanobind/stl/optional.h>

#include <cstring>
#include <limits>
#include <vector>

#include "bind/items.hpp"
#include "bind/records.hpp"

namespace di::bind {
namespace {

constexpr int64_t kMaxWidth = std::numeric_limits<int32_t>::max();  // positions are int32
constexpr const char* kWindowItems[] = {"ring",        "fresh", "format", "slot", "split",
                                        "fresh_start", "begin", "end",    "width"};
constexpr const char* kEntryItems[] = {"pages", "format", "block_table", "sequence", "selected"};

const int32_t* row_array(const View& view, const char* name, int64_t rows) {
  return dense<int32_t, 1>(view, name, {rows}).data;
}

WindowKeys window_keys(const nb::tuple& tuple, const AttentionShape& shape) {
  const Items window(tuple, "window", kWindowItems);
  const RecordFormat format = record_format(window.text(2));
  return WindowKeys{record_grid<3>(window.tensor(0), "ring", format, shape.dim),
                    record_grid<2>(window.tensor(1), "fresh", format, shape.dim),
                    row_array(window.tensor(3), "slot", shape.rows),
                    row_array(window.tensor(4), "split", shape.rows),
                    row_array(window.tensor(5), "fresh_start", shape.rows),
                    row_array(window.tensor(6), "begin", shape.rows),
                    row_array(window.tensor(7), "end", shape.rows),
                    window.integer(8, 0, kMaxWidth)};
}

EntryKeys entry_keys(const nb::tuple& tuple, const AttentionShape& shape) {
  const Items entries(tuple, "entries", kEntryItems);
  const RecordFormat format = record_format(entries.text(1));
  const auto table = dense<int32_t, 2>(entries.tensor(2), "block_table");
  const auto selected = dense<int32_t, 2>(entries.tensor(4), "selected", {shape.rows, kAny});
  return EntryKeys{record_grid<3>(entries.tensor(0), "pages", format, shape.dim),
                   table.data,
                   table.shape[0],
                   table.shape[1],
                   row_array(entries.tensor(3), "sequence", shape.rows),
                   selected.data,
                   selected.shape[1]};
}

template <class T>
struct Call {
  AttentionShape shape;
  const T* q;
  std::vector<float> sink;  // a copy: a memory-mapped checkpoint holds them at any address
  T* out;

  Call(const View& q_view, const View& sink_view, const View& out_view) {
    const auto in = dense<T, 3>(q_view, "q");
    const auto result = dense<T, 3>(out_view, "out", in.shape);
    const auto sinks = dense<float, 1>(sink_view, "sink", {in.shape[1]});
    shape = {in.shape[0], in.shape[1], in.shape[2]};
    q = in.data;
    sink.resize(static_cast<size_t>(shape.heads));
    if (!sink.empty()) std::memcpy(sink.data(), sinks.data, sink.size() * sizeof(float));
    out = result.data;
  }
};

template <class T>
void call_sparse(const View& q, const nb::tuple& window, const std::optional<nb::tuple>& entries,
                 const View& sink, float scale, const View& out) {
  const Call<T> c(q, sink, out);
  const WindowKeys keys = window_keys(window, c.shape);
  EntryKeys selected{};
  if (entries.has_value()) selected = entry_keys(*entries, c.shape);
  const EntryKeys* more = entries.has_value() ? &selected : nullptr;
  nb::gil_scoped_release release;
  sparse_attention<T>(c.shape, c.q, keys, more, c.sink.data(), scale, c.out);
}

template <class T>
void call_gathered(const View& q, const View& keys, const View& index, const View& sink, float scale,
                   const View& out) {
  constexpr RecordFormat format = sizeof(T) == 2 ? RecordFormat::bfloat16 : RecordFormat::float32;
  const Call<T> c(q, sink, out);
  const auto array = rows<T, 2>(keys, "keys");
  const auto chosen = dense<int32_t, 2>(index, "index", {c.shape.rows, kAny});
  require_width("keys", array.shape[1], c.shape.dim);
  const RecordGrid grid = as_grid(with_outer(array), format);
  nb::gil_scoped_release release;
  gathered_attention<T>(c.shape, c.q, grid, chosen.data, chosen.shape[1], c.sink.data(), scale, c.out);
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def(
      "sparse_attention",
      [](View q, nb::tuple window, std::optional<nb::tuple> entries, View sink, float scale, View out) {
        is<bf16>(q) ? call_sparse<bf16>(q, window, entries, sink, scale, out)
                    : call_sparse<float>(q, window, entries, sink, scale, out);
      },
      nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
  m.def("gathered_attention", [](View q, View keys, View index, View sink, float scale, View out) {
    is<bf16>(q) ? call_gathered<bf16>(q, keys, index, sink, scale, out)
                : call_gathered<float>(q, keys, index, sink, scale, out);
  });
}

}  // namespace di::bind
