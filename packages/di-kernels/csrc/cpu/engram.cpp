#include "cpu/engram.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/formats.hpp"
#include "cpu/linear.hpp"
#include "cpu/norm.hpp"
#include "parallel.hpp"

namespace di {
namespace {

// Remainder with the sign of the (positive) divisor.
int64_t floor_mod(int64_t value, int64_t divisor) {
  const int64_t remainder = value % divisor;
  return remainder < 0 ? remainder + divisor : remainder;
}

// Products wrap around like those of the tables' authors; unsigned arithmetic makes that defined.
int64_t wrapping_product(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// The gate of one stream (5.6). std::max keeps a NaN that comes first.
float gate(float similarity) {
  const float root = std::sqrt(std::max(std::fabs(similarity), 1e-6f));
  return 1.0f / (1.0f + std::exp(-std::copysign(root, similarity)));
}

// Scratch of one row: query, key, weighted query and value.
struct InjectScratch {
  std::vector<float> query, key, weighted, value;

  explicit InjectScratch(int64_t dim)
      : query(static_cast<size_t>(dim)), key(query.size()), weighted(query.size()), value(query.size()) {}
};

template <class T>
void inject_row(const T* stream, const T* kv, const float* weight, float eps, int64_t m, int64_t dim,
                InjectScratch& s, T* out) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  widen(kv + m * dim, dim, s.value.data());
  for (int64_t j = 0; j < m; ++j) {
    widen(stream + j * dim, dim, s.query.data());
    widen(kv + j * dim, dim, s.key.data());
    for (int64_t i = 0; i < dim; ++i) s.weighted[i] = s.query[i] * weight[j * dim + i];
    const float product = dot_product(s.weighted.data(), s.key.data(), dim);
    const float query_rstd = inverse_rms(s.query.data(), dim, eps);
    const float key_rstd = inverse_rms(s.key.data(), dim, eps);
    const float factor = gate(product * query_rstd * key_rstd * scale);
    for (int64_t i = 0; i < dim; ++i) out[j * dim + i] = from_float<T>(s.query[i] + factor * s.value[i]);
  }
}

}  // namespace

void engram_windows(const int32_t* tokens, int64_t rows, int64_t n, const uint8_t* vocabulary,
                    int64_t vocabulary_size, int64_t pad, int64_t* windows) {
  for (int64_t r = 0; r < rows; ++r) {
    bool reachable = true;
    for (int64_t k = 0; k < n; ++k) {
      const int32_t token = tokens[r * n + k];
      reachable = reachable && token >= 0 && token < vocabulary_size;
      windows[r * n + k] = reachable ? load_unaligned<int32_t>(vocabulary, token) : k == 0 ? -1 : pad;
    }
  }
}

void engram_hash(const int64_t* windows, int64_t rows, const EngramHash& hash, int64_t* ids) {
  const int64_t columns = (hash.n - 1) * hash.heads;
  parallel_for(rows, 16 * columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t* window = windows + r * hash.n;
      int64_t* out = ids + r * columns;
      if (window[0] < 0) {
        std::fill_n(out, columns, int64_t{-1});
        continue;
      }
      int64_t mixed = wrapping_product(window[0], hash.multipliers[0]);
      for (int64_t k = 1; k < hash.n; ++k) {
        mixed ^= wrapping_product(window[k], hash.multipliers[k]);
        for (int64_t c = (k - 1) * hash.heads; c < k * hash.heads; ++c) {
          out[c] = floor_mod(mixed, hash.primes[c]) + hash.offsets[c];
        }
      }
    }
  });
}

template <class T>
void engram_gather(const int64_t* ids, int64_t count, const EngramTable& table, T* y) {
  const int64_t dim = table.values.k;
  parallel_for(count, 2 * dim, [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(dim));
    for (int64_t i = begin; i < end; ++i) {
      if (ids[i] < 0) {
        std::fill(row.begin(), row.end(), 0.0f);
      } else if (table.scale == nullptr) {
        decode_rows(table.values, ids[i], 1, row.data());
      } else {
        decode_groups(GroupFormat::fp8, table.values.data + ids[i] * table.values.row_bytes,
                      table.scale + ids[i] * table.scale_stride, dim, row.data());
      }
      narrow(row.data(), dim, y + i * dim);
    }
  });
}

template <class T>
void engram_inject(const T* stream, const T* kv, const float* weight, const bool* active, float eps,
                   int64_t rows, int64_t m, int64_t dim, T* out) {
  parallel_for(rows, 8 * m * dim, [&](int64_t begin, int64_t end) {
    InjectScratch scratch(dim);
    for (int64_t r = begin; r < end; ++r) {
      const T* trunk = stream + r * m * dim;
      T* target = out + r * m * dim;
      if (active[r]) {
        inject_row(trunk, kv + r * (m + 1) * dim, weight, eps, m, dim, scratch, target);
      } else {
        std::copy_n(trunk, m * dim, target);
      }
    }
  });
}

template void engram_gather<float>(const int64_t*, int64_t, const EngramTable&, float*);
template void engram_gather<bf16>(const int64_t*, int64_t, const EngramTable&, bf16*);
template void engram_inject<float>(const float*, const float*, const float*, const bool*, float, int64_t,
                                   int64_t, int64_t, float*);
template void engram_inject<bf16>(const bf16*, const bf16*, const float*, const bool*, float, int64_t,
                                  int64_t, int64_t, bf16*);

}  // namespace di
