#include "cpu/engram.hpp"

#include <algorithm>

#include "cpu/formats.hpp"
#include "parallel.hpp"
#include "simd/engram.hpp"
#include "simd/formats.hpp"

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

// Asks for the lines of a stored row: rows of a step lie far apart, so that their reads should overlap.
void prefetch(const uint8_t* row, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i);
}

constexpr int64_t kPrefetched = 64;  // rows that are asked for before the first of them is decoded

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
  const Weight& values = table.values;
  const int64_t dim = values.k;
  const auto& loops = engram_simd::active().of<T>();
  const auto plain = values.format == WeightFormat::bfloat16 ? loops.from_b16 : loops.from_f32;
  const auto decode = formats_simd::active().of<T>().decode[static_cast<int>(GroupFormat::fp8)];
  const int64_t row_bytes = values.format == WeightFormat::fp8        ? dim
                            : values.format == WeightFormat::bfloat16 ? 2 * dim
                                                                      : 4 * dim;
  parallel_for(count, dim, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += kPrefetched) {
      const int64_t last = std::min(end, first + kPrefetched);
      for (int64_t i = first; i < last; ++i) {
        if (ids[i] < 0) continue;
        prefetch(values.data + ids[i] * values.row_bytes, row_bytes);
        if (table.scale != nullptr) prefetch(table.scale + ids[i] * table.scale_stride, dim / 32);
      }
      for (int64_t i = first; i < last; ++i) {
        const uint8_t* row = values.data + ids[i] * values.row_bytes;
        if (ids[i] < 0) {
          std::fill_n(y + i * dim, dim, from_float<T>(0.0f));
        } else if (table.scale == nullptr) {
          plain(row, dim, y + i * dim);
        } else {
          decode(row, table.scale + ids[i] * table.scale_stride, dim, y + i * dim);
        }
      }
    }
  });
}

template <class T>
void engram_inject(const T* stream, const T* kv, const float* weight, const bool* active, float eps,
                   int64_t rows, int64_t m, int64_t dim, T* out) {
  const auto inject = engram_simd::active().of<T>().inject;
  parallel_for(rows * m, 4 * dim, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i / m, s = i % m;
      const T* looked_up = kv + r * (m + 1) * dim;
      if (active[r]) {
        inject(stream + i * dim, looked_up + s * dim, looked_up + m * dim, weight + s * dim, eps, dim,
               out + i * dim);
      } else {
        std::copy_n(stream + i * dim, dim, out + i * dim);
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
