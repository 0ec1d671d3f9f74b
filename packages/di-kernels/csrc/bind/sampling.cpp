#include "cpu/sampling.hpp"

#include <algorithm>
#include <limits>

#include "bind/tensor.hpp"

namespace di::bind {
namespace {

constexpr double kSmallest = std::numeric_limits<double>::denorm_min();
constexpr double kLargest = std::numeric_limits<double>::max();

template <class T>
Rows<T> matrix(const View& v, const char* name) {
  const auto a = rows<std::remove_const_t<T>, 2>(v, name);
  return {a.data, a.shape[0], a.shape[1], a.stride[0]};
}

// One value a row (or a fixed number of entries): the pointer of a dense vector of the right length.
template <class T>
T* vector(const View& v, const char* name, int64_t length) {
  const auto a = dense<T, 1>(v, name);
  require(a.shape[0] == length, (std::string(name) + " has the wrong length").c_str());
  return a.data;
}

// Checks that every entry lies inside the logits, so that no call can write outside them.
RowEntries entries(const View& row_starts, const View& token_ids, const Rows<float>& logits) {
  const auto ids = dense<int64_t, 1>(token_ids, "token_ids");
  const int64_t* starts = vector<int64_t>(row_starts, "row_starts", logits.count + 1);
  bool valid = starts[0] == 0 && starts[logits.count] == ids.shape[0];
  for (int64_t r = 0; r < logits.count; ++r) valid = valid && starts[r] <= starts[r + 1];
  for (int64_t e = 0; e < ids.shape[0]; ++e)
    valid = valid && ids.data[e] >= 0 && ids.data[e] < logits.columns;
  require(valid, "row_starts or token_ids out of range");
  return {starts, ids.data};
}

const int64_t* columns_of(const View& ids, const Logits& logits) {
  const int64_t* out = vector<int64_t>(ids, "ids", logits.count);
  for (int64_t r = 0; r < logits.count; ++r)
    require(out[r] >= 0 && out[r] < logits.columns, "ids out of range");
  return out;
}

// Values of a parameter, each within low..high: others would leave nothing to draw from.
const double* parameter(const View& v, const char* name, int64_t length, double low, double high) {
  const double* values = vector<double>(v, name, length);
  const auto allowed = [=](double value) { return value >= low && value <= high; };
  require(std::all_of(values, values + length, allowed), (std::string(name) + " is out of range").c_str());
  return values;
}

void bind_logprobs(nb::module_& m) {
  m.def("log_softmax", [](View logits, View out) {
    const auto x = matrix<const float>(logits, "logits");
    const auto y = matrix<float>(out, "out");
    require(x.count == y.count && x.columns == y.columns, "log_softmax: shapes do not agree");
    nb::gil_scoped_release release;
    log_softmax(x, y);
  });
  m.def("logprobs_at", [](View logits, View ids, View out) {
    const auto x = matrix<const float>(logits, "logits");
    const auto* tokens = columns_of(ids, x);
    auto* y = vector<float>(out, "out", x.count);
    nb::gil_scoped_release release;
    logprobs_at(x, tokens, y);
  });
  m.def("token_ranks", [](View logits, View ids, View out) {
    const auto x = matrix<const float>(logits, "logits");
    const auto* tokens = columns_of(ids, x);
    auto* y = vector<int64_t>(out, "out", x.count);
    nb::gil_scoped_release release;
    token_ranks(x, tokens, y);
  });
  m.def("top_logprobs", [](View logits, View ids, View logprobs) {
    const auto x = matrix<const float>(logits, "logits");
    const auto columns = dense<int64_t, 2>(ids, "ids");
    const auto values = dense<float, 2>(logprobs, "logprobs");
    require(columns.shape == values.shape && columns.shape[0] == x.count && columns.shape[1] <= x.columns,
            "top_logprobs: shapes do not agree");
    nb::gil_scoped_release release;
    top_logprobs(x, columns.shape[1], columns.data, values.data);
  });
}

void bind_edits(nb::module_& m) {
  m.def("apply_penalties", [](View logits, View row_starts, View token_ids, View output_counts,
                              View repetition, View presence, View frequency) {
    const auto x = matrix<float>(logits, "logits");
    const auto where = entries(row_starts, token_ids, x);
    const auto* counts = vector<int32_t>(output_counts, "output_counts", where.row_starts[x.count]);
    const auto* factor = vector<float>(repetition, "repetition", x.count);
    const auto* once = vector<float>(presence, "presence", x.count);
    const auto* each = vector<float>(frequency, "frequency", x.count);
    nb::gil_scoped_release release;
    apply_penalties(x, where, counts, factor, once, each);
  });
  m.def("apply_bias", [](View logits, View row_starts, View token_ids, View values) {
    const auto x = matrix<float>(logits, "logits");
    const auto where = entries(row_starts, token_ids, x);
    const auto* added = vector<float>(values, "values", where.row_starts[x.count]);
    nb::gil_scoped_release release;
    apply_bias(x, where, added);
  });
}

void bind_draws(nb::module_& m) {
  m.def("philox", [](View seeds, View positions, int64_t purpose, View out) {
    const auto y = matrix<int64_t>(out, "out");
    const auto* keys = vector<int64_t>(seeds, "seeds", y.count);
    const auto* where = vector<int64_t>(positions, "positions", y.count);
    nb::gil_scoped_release release;
    philox(keys, where, purpose, y);
  });
  m.def("sample", [](View logits, View temperature, View top_k, View top_p, View min_p, View seeds,
                     View positions, View out) {
    const auto x = matrix<const float>(logits, "logits");
    const SamplingParameters parameters = {parameter(temperature, "temperature", x.count, 0.0, kLargest),
                                           vector<int64_t>(top_k, "top_k", x.count),
                                           parameter(top_p, "top_p", x.count, kSmallest, 1.0),
                                           parameter(min_p, "min_p", x.count, 0.0, 1.0),
                                           vector<int64_t>(seeds, "seeds", x.count),
                                           vector<int64_t>(positions, "positions", x.count)};
    auto* tokens = vector<int64_t>(out, "out", x.count);
    nb::gil_scoped_release release;
    sample(x, parameters, tokens);
  });
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("all_finite", [](View logits, View out) {
    const auto x = matrix<const float>(logits, "logits");
    auto* y = vector<bool>(out, "out", x.count);
    nb::gil_scoped_release release;
    all_finite(x, y);
  });
  m.def("argmax", [](View logits, View out) {
    const auto x = matrix<const float>(logits, "logits");
    auto* y = vector<int64_t>(out, "out", x.count);
    nb::gil_scoped_release release;
    argmax(x, y);
  });
  bind_logprobs(m);
  bind_edits(m);
  bind_draws(m);
}

}  // namespace di::bind
