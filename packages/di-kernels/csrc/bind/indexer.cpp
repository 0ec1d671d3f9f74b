#include "cpu/indexer.hpp"

#include <nanobind/stl/optional.h>

#include <algorithm>

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
    const auto array = rows<float, 3>(values, "values");
    require_width("values", array.shape[2], shape.dim);
    pages.values = as_grid(array, RecordFormat::float32);
  } else {
    constexpr RecordFormat format = RecordFormat::mxfp4;
    const auto codes = rows<uint8_t, 3>(values, "values");
    const auto scales = rows<uint8_t, 3>(*scale, "scales");
    require(shape.dim % record_group(format) == 0,
            "index_scores: the index dimension must be a multiple of 32");
    require_width("values", codes.shape[2], value_bytes(format, shape.dim));
    require_width("scales", scales.shape[2], scale_bytes(format, shape.dim));
    require(codes.shape[0] == scales.shape[0] && codes.shape[1] == scales.shape[1],
            "index_scores: values and scales must have the same blocks and entries");
    pages.values = as_grid(codes, format);
    pages.scales = as_grid(scales, format);
  }
  const auto table = dense<int32_t, 2>(items.tensor(2), "block_table");
  const auto sequence = dense<int32_t, 1>(items.tensor(3), "sequence");
  require(sequence.shape[0] == shape.rows, "index_scores: sequence must have one element a row");
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
  const auto w = dense<T, 2>(weights, "head_weights");
  const auto v = dense<int32_t, 1>(visible, "visible");
  const auto o = dense<float, 2>(out, "out");
  const IndexShape shape{in.shape[0], in.shape[1], in.shape[2]};
  require(w.shape[0] == shape.rows && w.shape[1] == shape.heads && v.shape[0] == shape.rows &&
              o.shape[0] == shape.rows,
          "index_scores: shapes do not agree");
  IndexTargets targets{v.data, nullptr, o.shape[1]};
  if (entries.has_value()) {
    const auto e = dense<int32_t, 2>(*entries, "entries");
    require(e.shape == o.shape, "index_scores: entries and out must have the same shape");
    targets.entries = e.data;
  }
  const IndexPages keys = index_pages(pages, shape);
  nb::gil_scoped_release release;
  index_scores<T>(shape, in.data, w.data, keys, targets, o.data);
}

template <class T>
void call_select(const View& q, const View& weights, const nb::tuple& pages, const View& visible,
                 const std::optional<View>& candidates, int64_t block_size, const View& selected,
                 const std::optional<View>& blocks) {
  const auto in = dense<T, 3>(q, "q");
  const auto w = dense<T, 2>(weights, "head_weights");
  const auto v = dense<int32_t, 1>(visible, "visible");
  const auto s = dense<int32_t, 2>(selected, "selected");
  const IndexShape shape{in.shape[0], in.shape[1], in.shape[2]};
  require(w.shape[0] == shape.rows && w.shape[1] == shape.heads && v.shape[0] == shape.rows &&
              s.shape[0] == shape.rows,
          "select_entries: shapes do not agree");
  require(s.shape[1] >= 1 && block_size >= 1, "select_entries: topk and block_size must be positive");
  require(!candidates.has_value() || !blocks.has_value(),
          "select_entries: blocks are chosen among all entries, not among candidates");
  // Entries are int32 numbers: all of them are in one block of 2^31.
  const int64_t size = std::min(block_size, int64_t{1} << 31);
  EntryChoice choice{v.data, s.shape[1], s.data, nullptr, 0, size, nullptr, 0};
  if (candidates.has_value()) {
    const auto c = dense<int32_t, 2>(*candidates, "candidates");
    require(c.shape[0] == shape.rows, "select_entries: candidates must have one row a query");
    choice.candidates = c.data;
    choice.candidate_count = c.shape[1];
  }
  if (blocks.has_value()) {
    const auto b = dense<int32_t, 2>(*blocks, "blocks");
    require(b.shape[0] == shape.rows && b.shape[1] >= 1, "select_entries: blocks must be [rows, top_blocks]");
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
    const auto v = dense<int32_t, 1>(visible, "visible");
    const auto o = dense<int32_t, 2>(out, "out");
    require(v.shape[0] == s.shape[0] && o.shape[0] == s.shape[0],
            "candidate_blocks: row counts do not agree");
    require(block_size >= 1 && o.shape[1] >= 1,
            "candidate_blocks: block_size and top_blocks must be positive");
    nb::gil_scoped_release release;
    candidate_blocks(s.data, s.stride[0], s.shape[0], s.shape[1], v.data, block_size, o.shape[1], o.data);
  });
  m.def("candidate_entries", [](View blocks, View visible, int64_t block_size, View out) {
    const auto b = dense<int32_t, 2>(blocks, "blocks");
    const auto v = dense<int32_t, 1>(visible, "visible");
    const auto o = dense<int32_t, 2>(out, "out");
    require(block_size >= 1, "candidate_entries: block_size must be positive");
    require(v.shape[0] == b.shape[0] && o.shape[0] == b.shape[0] && o.shape[1] == b.shape[1] * block_size,
            "candidate_entries: shapes do not agree");
    nb::gil_scoped_release release;
    candidate_entries(b.data, b.shape[0], b.shape[1], v.data, block_size, o.data);
  });
}

}  // namespace di::bind
