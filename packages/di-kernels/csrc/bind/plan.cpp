// Plans bound to weights and caches; then one call a step.
#include <nanobind/stl/string.h>

#include "bind/fields.hpp"
#include "bind/host_array.hpp"
#include "bind/plan_parts.hpp"
#include "bind/records.hpp"
#include "bind/sampling.hpp"
#include "cpu/range.hpp"
#include "plan/model.hpp"

namespace di::bind {
namespace {

using namespace di::plan;

// Caches of one layer, as CachePool views them; the formats are those of all layers.
LayerCache layer_cache(const Fields& f, const Fields& caches) {
  LayerCache cache;
  const int64_t head_dim = caches.integer("head_dim", 1, kMost),
                index_dim = caches.integer("index_dim", 1, kMost);
  const auto format = [&](const char* name) {
    return record_format(caches.child(name).value<std::string>("value"));
  };
  cache.window = record_grid<3>(f.tensor("window"), "window", format("window_format"), head_dim);
  if (f.has("entries")) {
    cache.entries = record_grid<3>(f.tensor("entries"), "entries", format("entry_format"), head_dim);
  }
  if (f.has("index_values")) {
    const RecordFormat index = format("index_format");
    if (is_plain(index)) {
      cache.index_values = record_grid<3>(f.tensor("index_values"), "index_values", index, index_dim);
    } else {
      std::tie(cache.index_values, cache.index_scales) =
          split_grids(f.tensor("index_values"), "index_values", f.tensor("index_scales"), "index_scales",
                      index, index_dim);
    }
  }
  if (f.has("compress")) {
    const auto ring = rows<float, 4>(f.tensor("compress"), "compress");
    require(ring.shape[2] == 2 && ring.shape[3] == head_dim, "compress must be [slots, cells, 2, head_dim]");
    cache.compress = {ring.data,      ring.shape[0],  ring.shape[1],
                      ring.stride[0], ring.stride[1], ring.stride[2]};
  }
  return cache;
}

void require_grid(const RecordGrid& grid, int64_t outer, int64_t inner, const char* message) {
  require(grid.data != nullptr && grid.outer == outer && grid.inner == inner, message);
}

// Every region that a layer reads or writes exists and has the sizes that step rows are made for.
void check_layer_caches(const AttentionPlan& a, const CacheViews& views, const Fields& f) {
  const CacheSizes& sizes = views.sizes;
  require_grid(views.layers[a.window.layer].window, sizes.slots, sizes.window_cells,
               "window rings differ in size");
  f.require_size("head_dim", f.integer("head_dim", 1, kMost), a.window.wkv.weight.n);
  if (a.kv_layer < 0) return;
  require(sizes.block_size % a.ratio == 0, "block_size must be a multiple of every compress ratio");
  const int64_t per_block = sizes.block_size / a.ratio;
  const auto require_entries = [&](int64_t layer) {
    require_grid(views.layers[layer].entries, sizes.blocks, per_block, "a layer has no entries of its ratio");
  };
  const auto require_keys = [&](int64_t layer, int64_t dim) {
    require_grid(views.layers[layer].index_values, sizes.blocks, per_block, "a layer has no index keys");
    f.require_size("index_dim", f.integer("index_dim", 1, kMost), dim);
  };
  require_entries(a.kv_layer);
  if (a.compressor) require_entries(a.window.layer);
  if (a.compressor && a.ratio == 2) {
    const CompressRing& ring = views.layers[a.window.layer].compress;
    require(ring.data != nullptr && ring.slots == sizes.slots && ring.cells == sizes.compress_cells,
            "a layer has no compression ring");
  }
  if (a.index_keys) require_keys(a.window.layer, a.index_keys->wk.n);
  if (a.indexer) require_keys(a.indexer->key_layer, a.indexer->dim);
}

// The scheduler's arrays, borrowed for a call.
struct StepArrays {
  HostArray<int32_t> tokens, q_start, q_len, slots, block_table, context;

  StepArrays(nb::handle token, nb::handle start, nb::handle length, nb::handle slot, nb::handle table,
             nb::handle before)
      : tokens(token, "tokens", 1),
        q_start(start, "q_start", 1),
        q_len(length, "q_len", 1),
        slots(slot, "slots", 1),
        block_table(table, "block_table", 2),
        context(before, "context", 2) {}

  StepInput input() const {
    return {tokens.values(),      q_start.values(), q_len.values(),        slots.values(),
            block_table.values(), context.values(), block_table.columns(), context.columns()};
  }
};

// A plan over the pools of one cache: computes steps.
struct CachedPlan {
  nb::object owner, keeps;
  BoundPlan& bound;
  CacheViews views;

  CachedPlan(nb::object plan, nb::object caches)
      : owner(plan), keeps(caches), bound(nb::cast<BoundPlan&>(plan)) {
    const Fields f(caches, "caches");
    views.sizes = {
        f.integer("block_size", 1, kMostPositions),   f.integer("blocks", 1, kMostPositions),
        f.integer("slots", 1, kMostPositions),        f.integer("window", 1, kMostPositions),
        f.integer("window_cells", 1, kMostPositions), f.integer("compress_cells", 1, kMostPositions)};
    require(views.sizes.window <= views.sizes.window_cells, "window_cells must be at least the window");
    f.each("layers", [&](const Fields& layer) { views.layers.push_back(layer_cache(layer, f)); });
    require(static_cast<int64_t>(views.layers.size()) >= bound.cache_layers,
            "caches of some layers are missing");
    for (const LayerPlan& layer : bound.plan.layers) check_layer_caches(layer.attention, views, f);
    if (!bound.plan.draft) return;
    for (const WindowPlan& w : bound.plan.draft->windows) {
      require_grid(views.layers[w.layer].window, views.sizes.slots, views.sizes.window_cells,
                   "window rings differ in size");
      f.require_size("head_dim", f.integer("head_dim", 1, kMost), w.wkv.weight.n);
    }
  }

  template <class T>
  void run(const StepInput& input, int64_t window_columns, const View& hidden,
           const std::optional<View>& features) {
    const auto count = static_cast<int64_t>(input.tokens.size());
    const auto out = dense<T, 2>(hidden, "hidden");
    require(out.shape[0] == count && out.shape[1] == bound.plan.dim(), "hidden must be [rows, dim]");
    T* feature_rows = nullptr;
    require(features.has_value() || !bound.plan.draft, "features are missing");
    if (features.has_value() && bound.plan.draft) {
      const auto array = dense<T, 2>(*features, "features");
      require(array.shape[0] == count && array.shape[1] == bound.plan.feature_row(),
              "features must be [rows, targets * dim]");
      feature_rows = array.data;
    }
    nb::gil_scoped_release release;
    bound.plan.run<T>(input, views, window_columns, out.data, feature_rows);
  }

  void check(const StepArrays& arrays, int64_t window_columns) const {
    for (const LayerPlan& layer : bound.plan.layers) {
      require(!layer.engram || arrays.context.columns() + 1 >= layer.engram->hash.n,
              "context is too short for Engram");
    }
    if (window_columns < 1 || window_columns > kMostPositions) {
      throw nb::value_error(("window_columns is " + std::to_string(window_columns) + "; allowed: 1 to " +
                             std::to_string(kMostPositions))
                                .c_str());
    }
  }

  void call(nb::handle tokens, nb::handle q_start, nb::handle q_len, nb::handle slots, nb::handle block_table,
            nb::handle context, int64_t window_columns, const View& hidden,
            const std::optional<View>& features) {
    const StepArrays arrays(tokens, q_start, q_len, slots, block_table, context);
    check(arrays, window_columns);
    bound.bfloat16 ? run<bf16>(arrays.input(), window_columns, hidden, features)
                   : run<float>(arrays.input(), window_columns, hidden, features);
  }

  void draw(nb::handle tokens, nb::handle q_start, nb::handle q_len, nb::handle slots, nb::handle block_table,
            nb::handle context, int64_t window_columns, nb::handle parameters, nb::handle out) {
    const StepArrays arrays(tokens, q_start, q_len, slots, block_table, context);
    const HostArray<uint8_t> packed(parameters, "parameters", 1);
    const HostArray<int32_t> drawn(out, "out", 1, true);
    check(arrays, window_columns);
    const int64_t rows = arrays.tokens.size();
    require(drawn.size() == rows, "out must have one element a row");
    const SamplingParameters* given = sampling_parameters(packed.data(), packed.size(), rows);
    nb::gil_scoped_release release;
    bound.bfloat16 ? bound.plan.draw<bf16>(arrays.input(), views, window_columns, given, drawn.data())
                   : bound.plan.draw<float>(arrays.input(), views, window_columns, given, drawn.data());
  }
};

template <class T>
void call_logits(BoundPlan& bound, const View& hidden, const HostArray<int64_t>* index, const View& out) {
  const auto in = dense<T, 2>(hidden, "hidden");
  const auto y = dense<float, 2>(out, "out");
  const int64_t count = index == nullptr ? in.shape[0] : static_cast<int64_t>(index->values().size());
  require(in.shape[1] == bound.plan.dim() && y.shape[0] == count && y.shape[1] == bound.plan.head.n,
          "logits: shapes do not agree");
  const int64_t* rows = index == nullptr ? nullptr : index->values().data();
  for (int64_t i = 0; i < count && rows != nullptr; ++i) require_range("row", i, rows[i], 0, in.shape[0]);
  nb::gil_scoped_release release;
  bound.plan.logits<T>(in.data, rows, count, y.data);
}

template <class T>
nb::list list_of(const std::vector<T>& values) {
  nb::list out;
  for (const T value : values) out.append(value);
  return out;
}

// The arrays that a step is expanded into, by name, for tests.
nb::dict step_rows(nb::handle tokens, nb::handle q_start, nb::handle q_len, nb::handle slots,
                   nb::handle block_table, nb::handle context, nb::tuple sizes) {
  const StepArrays arrays(tokens, q_start, q_len, slots, block_table, context);
  require(sizes.size() == 6, "sizes are block_size, blocks, slots, window, window_cells, compress_cells");
  int64_t s[6];
  for (size_t i = 0; i < 6; ++i) s[i] = nb::cast<int64_t>(sizes[i]);
  require(*std::min_element(s, s + 6) >= 1, "sizes must be at least 1");
  StepRows r;
  r.build(arrays.input(), {s[0], s[1], s[2], s[3], s[4], s[5]});
  nb::dict out;
  const auto put = [&](const char* name, const std::vector<int32_t>& values) { out[name] = list_of(values); };
  put("positions", r.positions);
  put("sequence", r.sequence);
  put("last_tokens", r.last_tokens);
  put("slot", r.slot);
  put("split", r.split);
  put("fresh_start", r.fresh_start);
  put("begin", r.begin);
  put("end", r.window_end);
  const auto put_entries = [&](const std::string& name, const EntryRows& e) {
    put((name + ".visible").c_str(), e.visible);
    put((name + ".row").c_str(), e.row);
    put((name + ".block").c_str(), e.block);
    put((name + ".entry").c_str(), e.entry);
    put((name + ".rope_position").c_str(), e.rope_position);
  };
  const auto put_ring = [&](const std::string& name, const RingStores& ring) {
    put((name + ".row").c_str(), ring.row);
    put((name + ".slot").c_str(), ring.slot);
    put((name + ".cell").c_str(), ring.cell);
  };
  put_ring("window_store", r.window_store);
  put_ring("compress_store", r.compress_store);
  put_entries("singles", r.singles);
  put_entries("pairs", r.pairs);
  put("partners.first", r.partners.first);
  put("partners.slot", r.partners.slot);
  put("partners.cell", r.partners.cell);
  return out;
}

}  // namespace

void bind_plan(nb::module_& m) {
  nb::class_<BoundPlan>(m, "ModelPlan")
      .def(
          "__init__",
          [](BoundPlan* self, nb::handle spec) {
            new (self) BoundPlan;
            try {
              bind_model(self, spec);
            } catch (...) {
              self->~BoundPlan();
              throw;
            }
          },
          nb::arg("spec").none())
      .def_prop_ro("workspace_bytes", [](const BoundPlan& self) { return self.plan.workspace_bytes(); })
      .def(
          "logits",
          [](BoundPlan& self, View hidden, nb::object rows, View out) {
            std::optional<HostArray<int64_t>> index;
            if (!rows.is_none()) index.emplace(rows, "rows", 1);
            const HostArray<int64_t>* chosen = index.has_value() ? &*index : nullptr;
            self.bfloat16 ? call_logits<bf16>(self, hidden, chosen, out)
                          : call_logits<float>(self, hidden, chosen, out);
          },
          nb::arg("hidden"), nb::arg("rows").none(), nb::arg("out"));
  nb::class_<CachedPlan>(m, "CachedPlan")
      .def(nb::init<nb::object, nb::object>(), nb::arg("plan"), nb::arg("caches").none())
      .def("run", &CachedPlan::call, nb::arg("tokens"), nb::arg("q_start"), nb::arg("q_len"),
           nb::arg("slots"), nb::arg("block_table"), nb::arg("context"), nb::arg("window_columns"),
           nb::arg("hidden"), nb::arg("features").none())
      .def("draw", &CachedPlan::draw, nb::arg("tokens"), nb::arg("q_start"), nb::arg("q_len"),
           nb::arg("slots"), nb::arg("block_table"), nb::arg("context"), nb::arg("window_columns"),
           nb::arg("parameters"), nb::arg("out"));
  m.def("step_rows", &step_rows);
}

}  // namespace di::bind
