#include "bind/plan_parts.hpp"

#include <algorithm>
#include <cstring>

#include "bind/engram.hpp"
#include "bind/weight.hpp"

namespace di::bind {
namespace {

using namespace di::plan;

float real(const Fields& f, const char* name) { return static_cast<float>(f.value<double>(name)); }

Norm norm_of(const Fields& f, const char* name, int64_t dim, float eps) {
  return {f.vector<float>(name, dim), dim, eps, false};
}

Projection projection_of(const Fields& f, const char* name, int64_t n, int64_t k) {
  const Fields p = f.child(name);
  const Projection out{p.weight("weight", n, k), p.value<bool>("quantize")};
  if (out.quantize && out.weight.k % 32 != 0) p.refuse("weight", "must hold whole groups of 32");
  return out;
}

RopeTable rope_of(const Fields& f, int64_t width) {
  const auto table = dense<float, 2>(f.tensor("rope"), "rope");
  if (table.shape[1] % 2 != 0 || table.shape[1] > width) f.refuse("rope", "does not fit the head dimension");
  return {table.data, table.shape[0], table.shape[1]};
}

HyperPlan hyper_of(const Fields& f, const char* name, const Fields& model, int64_t dim) {
  const Fields h = f.child(name);
  const int64_t m = model.integer("streams", 1, 64), size = m * (m + 2);
  const Weight fn = borrow_weight(WeightFormat::float32, h.tensor("fn"));
  h.require_size("fn", fn.n, size);
  h.require_size("fn", fn.k, m * dim);
  return {fn,
          {h.vector<float>("base", size), h.vector<float>("scale", 3), real(model, "hc_eps"),
           static_cast<int>(model.integer("sinkhorn_iters", 1, 1 << 20))},
          real(model, "eps")};
}

const ExpertBank* bank_of(const Fields& f, const char* name, int64_t dim, bool quantize) {
  const auto* bank = f.value<ExpertBank*>(name);
  if (bank == nullptr || bank->size() == 0) f.refuse(name, "holds no expert");
  f.require_size(name, bank->dim, dim);
  if (quantize && (bank->dim % 32 != 0 || bank->inter % 32 != 0)) {
    f.refuse(name, "must hold whole groups of 32");
  }
  return bank;
}

MoePlan moe_of(const Fields& f, int64_t dim) {
  MoePlan moe;
  moe.quantize_experts = f.value<bool>("quantize_experts");
  moe.quantize_shared = f.value<bool>("quantize_shared");
  moe.experts = bank_of(f, "experts", dim, moe.quantize_experts);
  moe.shared = bank_of(f, "shared", dim, moe.quantize_shared);
  moe.gate = f.weight("gate", moe.experts->size(), dim);
  moe.bias = f.vector<float>("bias", moe.gate.n);
  moe.top_k = f.integer("top_k", 1, moe.gate.n);
  moe.scale = real(f, "scale");
  moe.limit = real(f, "limit");
  return moe;
}

EngramTable engram_table(const Fields& f, int64_t dim) {
  const EngramTable table = borrow_engram_table(
      f.tensor("table"), f.has("table_scale") ? std::optional(f.tensor("table_scale")) : std::nullopt);
  f.require_size("table", table.values.k, dim);
  return table;
}

EngramPlan engram_of(const Fields& f, int64_t streams, int64_t dim, float eps) {
  EngramPlan engram;
  const auto vocabulary = dense<int32_t, 1>(f.tensor("vocabulary"), "vocabulary");
  const auto multipliers = dense<int64_t, 1>(f.tensor("multipliers"), "multipliers");
  const auto primes = dense<int64_t, 2>(f.tensor("primes"), "primes");
  const auto offsets = dense<int64_t, 1>(f.tensor("offsets"), "offsets");
  const auto weight = dense<float, 2>(f.tensor("weight"), "weight");
  engram.vocabulary = reinterpret_cast<const uint8_t*>(vocabulary.data);
  engram.vocabulary_size = vocabulary.shape[0];
  engram.pad = f.integer("pad", 0, kMost);
  engram.hash = {multipliers.data, primes.data, offsets.data, multipliers.shape[0], primes.shape[1]};
  if (engram.hash.n < 1) f.refuse("multipliers", "is empty");
  f.require_size("primes", primes.shape[0], engram.hash.n - 1);
  f.require_size("offsets", offsets.shape[0], engram.columns());
  f.require_size("weight", weight.shape[0], streams);
  f.require_size("weight", weight.shape[1], dim);
  engram.weight = weight.data;
  engram.wkv = f.weight("wkv", (streams + 1) * dim, -1);
  if (engram.columns() == 0 || engram.wkv.k % engram.columns() != 0) f.refuse("wkv", "does not fit the hash");
  engram.table = engram_table(f, engram.wkv.k / engram.columns());
  for (int64_t c = 0; c < engram.columns(); ++c) {
    const int64_t prime = primes.data[c], offset = offsets.data[c];
    if (prime < 1 || offset < 0 || offset > engram.table.values.n - prime) {
      f.refuse("primes", "and offsets reach behind the table");
    }
  }
  engram.eps = eps;
  return engram;
}

WindowPlan window_of(const Fields& f, const Fields& model, int64_t dim) {
  WindowPlan window;
  window.layer = f.integer("layer", 0, kMost);
  window.wkv = projection_of(f, "wkv", -1, dim);
  window.norm = norm_of(f, "kv_norm", window.wkv.weight.n, real(model, "eps"));
  window.rope = rope_of(f, window.wkv.weight.n);
  return window;
}

CompressorPlan compressor_of(const Fields& f, int64_t ratio, int64_t head_dim, int64_t dim, float eps) {
  CompressorPlan compressor{ratio, f.weight("wkv", head_dim, dim), {}, norm_of(f, "norm", head_dim, eps)};
  if (ratio == 2) compressor.wgate = f.weight("wgate", head_dim, dim);
  return compressor;
}

IndexKeysPlan index_keys_of(const Fields& f, int64_t ratio, int64_t head_dim, float eps) {
  const Weight wk = f.weight("wk", -1, head_dim);
  return {ratio, wk, norm_of(f, "norm", wk.n, eps)};
}

IndexerPlan indexer_of(const Fields& f, int64_t ratio, int64_t q_rank, int64_t dim) {
  IndexerPlan indexer;
  indexer.ratio = ratio;
  indexer.heads = f.integer("heads", 1, kMost);
  indexer.dim = f.integer("dim", 1, kMost);
  indexer.topk = f.integer("topk", 1, kMost);
  indexer.block_size = f.integer("block_size", 1, kMost);
  indexer.top_blocks = f.integer("top_blocks", 1, kMost);
  indexer.key_layer = f.integer("key_layer", 0, kMost);
  indexer.candidates = static_cast<Candidates>(f.child("candidates").integer("value", 0, 2));
  indexer.wq_b = projection_of(f, "wq_b", indexer.heads * indexer.dim, q_rank);
  indexer.weights_proj = f.weight("weights_proj", indexer.heads, dim);
  indexer.scale = real(f, "scale");
  return indexer;
}

AttentionPlan attention_of(const Fields& f, const Fields& model, int64_t dim) {
  AttentionPlan a;
  const float eps = real(model, "eps");
  a.window = window_of(f.child("window"), model, dim);
  const int64_t head_dim = a.window.wkv.weight.n;
  a.heads = f.integer("heads", 1, kMost);
  a.groups = f.integer("groups", 1, a.heads);
  a.ratio = f.integer("ratio", 0, 2);
  a.recent_topk = f.integer("recent_topk", 0, kMost);
  a.scale = real(f, "scale");
  a.wq_a = projection_of(f, "wq_a", -1, dim);
  a.q_norm = norm_of(f, "q_norm", a.wq_a.weight.n, eps);
  a.wq_b = projection_of(f, "wq_b", a.heads * head_dim, a.wq_a.weight.n);
  require(a.heads % a.groups == 0, "groups must divide the heads");
  a.q_norm.quantize = a.wq_b.quantize;
  a.wo_a = f.weight("wo_a", -1, a.heads / a.groups * head_dim);
  require(a.wo_a.n % a.groups == 0, "groups must divide the rows of wo_a");
  a.wo_b = projection_of(f, "wo_b", dim, a.wo_a.n);
  a.sink.resize(static_cast<size_t>(a.heads));
  std::memcpy(a.sink.data(), f.vector<float>("sink", a.heads), a.sink.size() * sizeof(float));
  if (!f.has("kv_layer")) return a;
  if (a.ratio == 0) f.refuse("kv_layer", "is given for a layer of ratio 0");
  a.kv_layer = f.integer("kv_layer", 0, kMost);
  if (f.has("compressor")) a.compressor = compressor_of(f.child("compressor"), a.ratio, head_dim, dim, eps);
  const auto require_rope = [&](const char* name, int64_t width) {
    if (a.window.rope.dim > width) f.refuse(name, "is narrower than the rope table");
  };
  if (f.has("index_keys")) {
    a.index_keys = index_keys_of(f.child("index_keys"), a.ratio, head_dim, eps);
    require_rope("index_keys", a.index_keys->wk.n);
  }
  if (f.has("indexer")) {
    a.indexer = indexer_of(f.child("indexer"), a.ratio, a.wq_a.weight.n, dim);
    require_rope("indexer", a.indexer->dim);
    if (model.value<bool>("bfloat16") && a.indexer->dim % 32 != 0) {
      f.refuse("indexer", "must hold whole groups of 32");
    }
    a.q_norm.quantize |= a.indexer->wq_b.quantize;
  }
  return a;
}

LayerPlan layer_of(const Fields& f, const Fields& model, int64_t dim) {
  const float eps = real(model, "eps");
  LayerPlan layer;
  if (f.has("draft_feature")) layer.draft_feature = f.integer("draft_feature", 0, 64);
  layer.attention_hyper = hyper_of(f, "attention_hyper", model, dim);
  layer.experts_hyper = hyper_of(f, "experts_hyper", model, dim);
  layer.attention_norm = norm_of(f, "attention_norm", dim, eps);
  layer.experts_norm = norm_of(f, "experts_norm", dim, eps);
  layer.attention = attention_of(f.child("attention"), model, dim);
  layer.attention_norm.quantize = layer.attention.wq_a.quantize || layer.attention.window.wkv.quantize;
  layer.experts = moe_of(f.child("experts"), dim);
  if (f.has("engram")) layer.engram = engram_of(f.child("engram"), model.integer("streams", 1, 64), dim, eps);
  return layer;
}

DraftContextPlan draft_of(const Fields& f, const Fields& model, int64_t dim) {
  DraftContextPlan draft;
  draft.main_proj = projection_of(f, "main_proj", dim, -1);
  draft.main_norm = norm_of(f, "main_norm", dim, real(model, "eps"));
  f.each("windows", [&](const Fields& w) { draft.windows.push_back(window_of(w, model, dim)); });
  for (const WindowPlan& window : draft.windows) draft.main_norm.quantize |= window.wkv.quantize;
  return draft;
}

// Whether what the layers borrow from each other is there, and fits.
void check_sharing(const Fields& f, BoundPlan& bound) {
  ModelPlan& plan = bound.plan;
  bool latent = false, selected = false, candidates = false;
  std::vector<bool> features(plan.layers.size());
  for (LayerPlan& layer : plan.layers) {
    const AttentionPlan& a = layer.attention;
    if (a.window.rope.positions != plan.positions())
      f.refuse("layers", "have rope tables of several lengths");
    bound.cache_layers = std::max({bound.cache_layers, a.window.layer + 1, a.kv_layer + 1});
    if (layer.draft_feature >= 0) {
      const auto feature = static_cast<size_t>(layer.draft_feature);
      if (feature >= features.size()) f.refuse("layers", "have a draft feature beyond their number");
      if (features[feature]) f.refuse("layers", "have a draft feature twice");
      features[feature] = true;
      if (plan.draft && (layer.draft_feature + 1) * plan.dim() > plan.feature_row()) {
        f.refuse("draft", "has no room for every feature");
      }
    }
    if (a.kv_layer < 0) continue;
    plan.entry_dim = std::max(plan.entry_dim, a.window.wkv.weight.n);
    latent |= a.compressor.has_value();
    if (a.index_keys && !latent) f.refuse("layers", "have index keys before there is a latent");
    if (a.indexer) {
      bound.cache_layers = std::max(bound.cache_layers, a.indexer->key_layer + 1);
      plan.most_selected = std::max(plan.most_selected, a.indexer->topk);
      plan.most_candidates = std::max(plan.most_candidates, a.indexer->top_blocks);
      candidates |= a.indexer->candidates == Candidates::source;
      if (a.indexer->candidates == Candidates::consumer && !candidates) {
        f.refuse("layers", "use candidates before there are some");
      }
    }
    plan.most_selected = std::max(plan.most_selected, a.recent_topk);
    selected |= a.indexer.has_value() || a.recent_topk > 0;
    if (!selected) f.refuse("layers", "attend to entries before any are selected");
  }
  if (!plan.draft) return;
  f.require_size("draft", std::ranges::count(features, true) * plan.dim(), plan.feature_row());
  for (const WindowPlan& w : plan.draft->windows) {
    bound.cache_layers = std::max(bound.cache_layers, w.layer + 1);
    if (w.rope.positions != plan.positions()) f.refuse("draft", "has a rope table of another length");
  }
}

}  // namespace

void bind_model(BoundPlan* bound, nb::handle spec) {
  const Fields f(spec, "spec");
  bound->keeps = nb::borrow(spec);
  bound->bfloat16 = f.value<bool>("bfloat16");
  ModelPlan& plan = bound->plan;
  plan.embed = borrow_numbers(f.tensor("embed"));
  plan.head = f.weight("head", -1, plan.dim());
  plan.norm = norm_of(f, "norm", plan.dim(), real(f, "eps"));
  plan.streams = f.integer("streams", 1, 64);
  f.each("layers", [&](const Fields& layer) { plan.layers.push_back(layer_of(layer, f, plan.dim())); });
  if (plan.layers.empty()) f.refuse("layers", "is empty");
  if (f.has("draft")) plan.draft = draft_of(f.child("draft"), f, plan.dim());
  check_sharing(f, *bound);
}

}  // namespace di::bind
