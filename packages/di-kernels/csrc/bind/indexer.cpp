#include "cpu/indexer.hpp"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <tuple>

#include "bind/items.hpp"
#include "bind/records.hpp"
#include "cpu/select.hpp"

namespace di::bind {
namespace {

constexpr const char* kPageItems[] = {"values", "scales", "block_table", "sequence"};

IndexPages index_pages(const nb::tuple& tuple, const IndexShape& shape) {
  const Items items(tuple, "pages", kPageItems);
  IndexPages pages{};
  const View values = items.tensor(0);
  const std::optional<View> scale = items.tensor_or_none(1);
  if (!scale.has_value()) {
    pages.values = as_grid(rows<float, 3>(values, "values", {kAny, kAny, shape.dim}), RecordFormat::float32);
  } else {
    std::tie(pages.values, pages.scales) =
        split_grids(values, "values", *scale, "scales", RecordFormat::mxfp4, shape.dim);
  }
  const auto table = dense<int32_t, 2>(items.tensor(2), "block_table");
  const auto sequence = dense<int32_t, 1>(items.tensor(3), "sequence", {shape.rows});
  require(pages.values.inner > 0, "index_scores: a block must hold at least one entry");
  pages.block_table = table.data;
  pages.sequences = table.shape[0];
  pages.table_width = table.shape[1];
  pages.sequence = sequence.data;
  return pages;
}

template <class T>
void call(const View& q, const View& weights, const nb::tuple& pages, const View& visible,
          const std::optional<View>& entries, const View& out) {
  const auto in = dense<T, 3>(q, "q");
  const IndexShape shape{in.shape[0], in.shape[1], in.shape[2]};
  const auto w = dense<T, 2>(weights, "head_weights", {shape.rows, shape.heads});
  const auto v = dense<int32_t, 1>(visible, "visible", {shape.rows});
  const auto o = dense<float, 2>(out, "out", {shape.rows, kAny});
  IndexTargets targets{v.data, nullptr, o.shape[1]};
  if (entries.has_value()) targets.entries = dense<int32_t, 2>(*entries, "entries", o.shape).data;
  const IndexPages keys = index_pages(pages, shape);
  nb::gil_scoped_release release;
  index_scores<T>(shape, in.data, w.data, keys, targets, o.data);
}

template <class T>
void call_select(const View& q, const View& weights, const nb::tuple& pages, const View& visible,
                 const std::optional<View>& candidates, int64_t block_size, const View& selected,
                 const std::optional<View>& blocks) {
  const auto in = dense<T, 3>(q, "q");
  const IndexShape shape{in.shape[0], in.shape[1], in.shape[2]};
  const auto w = dense<T, 2>(weights, "head_weights", {shape.rows, shape.heads});
  const auto v = dense<int32_t, 1>(visible, "visible", {shape.rows});
  const auto s = dense<int32_t, 2>(selected, "selected", {shape.rows, kAny});
  require(s.shape[1] >= 1 && block_size >= 1, "select_entries: topk and block_size must be positive");
  require(!candidates.has_value() || !blocks.has_value(),
          "select_entries: blocks are chosen among all entries, not among candidates");
  // Entries are int32 numbers: all of them are in one block of 2^31.
  const int64_t size = std::min(block_size, int64_t{1} << 31);
  EntryChoice choice{v.data, s.shape[1], s.data, nullptr, 0, size, nullptr, 0};
  if (candidates.has_value()) {
    const auto c = dense<int32_t, 2>(*candidates, "candidates", {shape.rows, kAny});
    choice.candidates = c.data;
    choice.candidate_count = c.shape[1];
  }
  if (blocks.has_value()) {
    const auto b = dense<int32_t, 2>(*blocks, "blocks", {shape.rows, kAny});
    require(b.shape[1] >= 1, "top_blocks is 0; it must be at least 1");
    choice.blocks = b.data;
    choice.top_blocks = b.shape[1];
  }
  const IndexPages keys = index_pages(pages, shape);
  nb::gil_scoped_release release;
  select_entries<T>(shape, in.data, w.data, keys, choice);
}

}  // namespace

void bind_indexer(nb::module_& m) {
  m.def(
      "index_scores",
      [](View q, View weights, nb::tuple pages, View visible, std::optional<View> entries, View out) {
        is<bf16>(q) ? call<bf16>(q, weights, pages, visible, entries, out)
                    : call<float>(q, weights, pages, visible, entries, out);
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
  m.def(
      "select_entries",
      [](View q, View weights, nb::tuple pages, View visible, std::optional<View> candidates,
         int64_t block_size, View selected, std::optional<View> blocks) {
        is<bf16>(q)
            ? call_select<bf16>(q, weights, pages, visible, candidates, block_size, selected, blocks)
            : call_select<float>(q, weights, pages, visible, candidates, block_size, selected, blocks);
      },
      nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none());
  m.def("candidate_blocks", [](View scores, View visible, int64_t block_size, View out) {
    const auto s = rows<float, 2>(scores, "scores");
    const auto v = dense<int32_t, 1>(visible, "visible", {s.shape[0]});
    const auto o = dense<int32_t, 2>(out, "out", {s.shape[0], kAny});
    require(block_size >= 1 && o.shape[1] >= 1,
            "candidate_blocks: block_size and top_blocks must be positive");
    nb::gil_scoped_release release;
    candidate_blocks(s.data, s.stride[0], s.shape[0], s.shape[1], v.data, block_size, o.shape[1], o.data);
  });
  m.def("candidate_entries", [](View blocks, View visible, int64_t block_size, View out) {
    const auto b = dense<int32_t, 2>(blocks, "blocks");
    const auto v = dense<int32_t, 1>(visible, "visible", {b.shape[0]});
    require(block_size >= 1, "candidate_entries: block_size must be positive");
    const auto o = dense<int32_t, 2>(out, "out", {b.shape[0], b.shape[1] * block_size});
    nb::gil_scoped_release release;
    candidate_entries(b.data, b.shape[0], b.shape[1], v.data, block_size, o.data);
  });
}

}  // namespace di::bind
