#include "cpu/sampling.hpp"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "bind/sampling.hpp"
#include "bind/tensor.hpp"

namespace di::bind {
namespace {

template <class T>
Rows<T> matrix(const View& v, const char* name, const std::array<int64_t, 2>& shape = {kAny, kAny}) {
  const auto a = rows<std::remove_const_t<T>, 2>(v, name, shape);
  return {a.data, a.shape[0], a.shape[1], a.stride[0]};
}

// One value a row (or a fixed number of entries): the pointer of a dense vector of the right length.
template <class T>
T* vector(const View& v, const char* name, int64_t length) {
  return dense<T, 1>(v, name, {length}).data;
}

// Throws with the first of n values that is not from low to high.
void require_within(const char* name, const int64_t* values, int64_t n, int64_t low, int64_t high) {
  const int64_t* bad =
      std::find_if(values, values + n, [=](int64_t value) { return value < low || value > high; });
  if (bad == values + n) return;
  const std::string allowed = std::to_string(low) + " to " + std::to_string(high);
  throw nb::value_error((std::string(name) + "[" + std::to_string(bad - values) + "] is " +
                         std::to_string(*bad) + "; allowed: " + allowed)
                            .c_str());
}

// Checks that every entry lies inside the logits, so that no call can write outside them.
RowEntries entries(const View& row_starts, const View& token_ids, const Rows<float>& logits) {
  const auto ids = dense<int64_t, 1>(token_ids, "token_ids");
  const int64_t* starts = vector<int64_t>(row_starts, "row_starts", logits.count + 1);
  require(starts[0] == 0 && starts[logits.count] == ids.shape[0] &&
              std::is_sorted(starts, starts + logits.count + 1),
          "row_starts must ascend from 0 to the number of token_ids");
  require_within("token_ids", ids.data, ids.shape[0], 0, logits.columns - 1);
  return {starts, ids.data};
}

const int64_t* columns_of(const View& ids, const Logits& logits) {
  const int64_t* out = vector<int64_t>(ids, "ids", logits.count);
  require_within("ids", out, logits.count, 0, logits.columns - 1);
  return out;
}

// Which rows of the logits are meant: `count` of them, all within; null means 0, 1, 2, ...
const int64_t* chosen_rows(const std::optional<View>& rows, int64_t count, int64_t available) {
  if (!rows) {
    require(count == available, "rows: without them, there must be an entry for each row of logits");
    return nullptr;
  }
  const int64_t* out = vector<int64_t>(*rows, "rows", count);
  require_within("rows", out, count, 0, available - 1);
  return out;
}

const SamplingParameters* records(const View& v) {
  const auto bytes = dense<uint8_t, 2>(v, "parameters");
  require(bytes.shape[1] == sizeof(SamplingParameters), "parameters: records of another size");
  return sampling_parameters(bytes.data, bytes.shape[0] * bytes.shape[1], bytes.shape[0]);
}

void bind_logprobs(nb::module_& m) {
  m.def("log_softmax", [](View logits, View out) {
    const auto x = matrix<const float>(logits, "logits");
    const auto y = matrix<float>(out, "out", {x.count, x.columns});
    nb::gil_scoped_release release;
    log_softmax(x, y);
  });
  m.def("describe_tokens",
        [](View logits, View ids, View logprobs, View ranks, View top_ids, View top_logprobs) {
          const auto x = matrix<const float>(logits, "logits");
          const auto* tokens = columns_of(ids, x);
          const auto columns = dense<int64_t, 2>(top_ids, "top_ids", {x.count, kAny});
          const auto values = dense<float, 2>(top_logprobs, "top_logprobs", columns.shape);
          require(columns.shape[1] <= x.columns, "top_ids has more columns than logits");
          const TokenDescriptions out = {vector<float>(logprobs, "logprobs", x.count),
                                         vector<int64_t>(ranks, "ranks", x.count), columns.shape[1],
                                         columns.data, values.data};
          nb::gil_scoped_release release;
          describe_tokens(x, tokens, out);
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
  m.def(
      "apply_bitmask",
      [](View logits, View bitmask, std::optional<View> rows) {
        const auto x = matrix<float>(logits, "logits");
        const auto words = matrix<const int32_t>(bitmask, "bitmask", {kAny, (x.columns + 31) / 32});
        const auto* which = chosen_rows(rows, words.count, x.count);
        for (int64_t i = 1; which != nullptr && i < words.count; ++i) {  // two threads must not edit one row
          if (which[i - 1] < which[i]) continue;
          throw nb::value_error(("rows[" + std::to_string(i) + "] is " + std::to_string(which[i]) +
                                 " behind " + std::to_string(which[i - 1]) +
                                 "; rows must be distinct and ascending")
                                    .c_str());
        }
        nb::gil_scoped_release release;
        apply_bitmask(
            x, {reinterpret_cast<const uint32_t*>(words.data), words.count, words.columns, words.stride},
            which);
      },
      nb::arg("logits"), nb::arg("bitmask"), nb::arg("rows").none());
}

void bind_draws(nb::module_& m) {
  m.def("philox", [](View seeds, View positions, int64_t purpose, View out) {
    const auto y = matrix<int64_t>(out, "out");
    const auto* keys = vector<int64_t>(seeds, "seeds", y.count);
    const auto* where = vector<int64_t>(positions, "positions", y.count);
    nb::gil_scoped_release release;
    philox(keys, where, purpose, y);
  });
  m.def(
      "choose",
      [](View logits, View parameters, View positions, std::optional<View> rows, View tokens, View finite) {
        const auto x = matrix<const float>(logits, "logits");
        const auto* given = records(parameters);
        const int64_t count = dense<uint8_t, 2>(parameters, "parameters").shape[0];
        const auto* which = chosen_rows(rows, count, x.count);
        const auto* where = vector<int64_t>(positions, "positions", count);
        require_within("positions", where, count, 0, std::numeric_limits<int64_t>::max());
        auto* ids = vector<int64_t>(tokens, "tokens", count);
        auto* usable = vector<bool>(finite, "finite", count);
        nb::gil_scoped_release release;
        choose(x, which, count, given, where, ids, usable);
      },
      nb::arg("logits"), nb::arg("parameters"), nb::arg("positions"), nb::arg("rows").none(),
      nb::arg("tokens"), nb::arg("finite"));
}

}  // namespace

const SamplingParameters* sampling_parameters(const uint8_t* data, int64_t size, int64_t count) {
  const auto refuse = [](const std::string& message) {
    const auto error = nb::module_::import_("di_kernels.ops.sampling").attr("SamplingParametersError");
    PyErr_SetString(error.ptr(), message.c_str());
    throw nb::python_error();
  };
  const auto require = [&](bool ok, const char* message) {
    if (!ok) refuse(message);
  };
  const auto require_value = [&](bool ok, const char* name, int64_t row, double value, const char* allowed) {
    if (ok) return;
    refuse(std::string(name) + " of row " + std::to_string(row) + " is " + std::to_string(value) +
           "; allowed: " + allowed);
  };
  require(size == count * static_cast<int64_t>(sizeof(SamplingParameters)),
          "parameters: one record a row is allowed");
  require(reinterpret_cast<uintptr_t>(data) % alignof(SamplingParameters) == 0,
          "parameters: records must be aligned to 8 bytes");
  const auto* out = reinterpret_cast<const SamplingParameters*>(data);
  for (int64_t i = 0; i < count; ++i) {
    const SamplingParameters& p = out[i];
    const bool finite = p.temperature >= 0.0 && p.temperature < std::numeric_limits<double>::infinity();
    require_value(finite, "temperature", i, p.temperature, "finite, 0 or more");
    require_value(p.top_p > 0.0 && p.top_p <= 1.0, "top_p", i, p.top_p, "above 0, at most 1");
    require_value(p.min_p >= 0.0 && p.min_p <= 1.0, "min_p", i, p.min_p, "0 to 1");
  }
  return out;
}

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
