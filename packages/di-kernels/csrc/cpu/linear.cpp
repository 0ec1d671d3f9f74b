#include "cpu/linear.hpp"

#include <algorithm>

#include "cpu/formats.hpp"
#include "cpu/reduce.hpp"
#include "parallel.hpp"

namespace di {
namespace {

// Input rows that are held as float32 at once: decoded weights are used this often, memory stays bounded.
constexpr int64_t kRowBlock = 256;

// MR x NR dot products at once, each in the order of dot() in reduce.hpp.
template <int MR, int NR>
[[gnu::always_inline]] inline void dot_block(const float* const* x, const float* w, int64_t k, float* y) {
  f32x16 sum[MR][NR][4] = {};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    for (int lane = 0; lane < 4; ++lane) {
      f32x16 b[NR];
      for (int j = 0; j < NR; ++j) b[j] = load16(w + j * k + i + 16 * lane);
      for (int r = 0; r < MR; ++r) {
        const f32x16 a = load16(x[r] + i + 16 * lane);
        for (int j = 0; j < NR; ++j) sum[r][j][lane] += a * b[j];
      }
    }
  }
  for (int r = 0; r < MR; ++r) {
    for (int j = 0; j < NR; ++j) {
      float total = tree_sum(sum[r][j][0], sum[r][j][1], sum[r][j][2], sum[r][j][3]);
      for (int64_t t = i; t < k; ++t) total += x[r][t] * w[j * k + t];
      y[r * kTileRows + j] = total;
    }
  }
}

template <int MR>
[[gnu::always_inline]] inline void dot_rows(const float* const* x, const float* w, int64_t count, int64_t k,
                                            float* y) {
  int64_t j = 0;
  for (; j + 2 <= count; j += 2) dot_block<MR, 2>(x, w + j * k, k, y + j);
  for (; j < count; ++j) dot_block<MR, 1>(x, w + j * k, k, y + j);
}

DI_MULTIVERSION
void dot_tile(const float* const* x, int64_t rows, const float* w, int64_t count, int64_t k, float* y) {
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2) dot_rows<2>(x + r, w, count, k, y + r * kTileRows);
  for (; r < rows; ++r) dot_rows<1>(x + r, w, count, k, y + r * kTileRows);
}

}  // namespace

DI_MULTIVERSION
float dot_product(const float* a, const float* b, int64_t n) { return dot(a, b, n); }

template <class T>
InputRows::InputRows(const T* x, int64_t rows, int64_t k, bool quantize)
    : k_(k), values_(new float[static_cast<size_t>(rows * k)]) {
  parallel_for(rows, 8 * k, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = values_.get() + r * k;
      widen(x + r * k, k, row);
      if (quantize) round_trip_fp8(row, k);
    }
  });
}

void project_tile(const float* const* x, int64_t rows, const Weight& weight, int64_t begin, int64_t count,
                  float* decoded, float* y) {
  decode_rows(weight, begin, count, decoded);
  dot_tile(x, rows, decoded, count, weight.k, y);
}

namespace {

// y[r, j] = round(dot(x[r], row begin + j of the weight)) for begin + j < end; y rows are `y_stride` apart.
template <class T>
void project(const std::vector<const float*>& x, const Weight& weight, int64_t begin, int64_t end, T* y,
             int64_t y_stride) {
  const auto rows = static_cast<int64_t>(x.size());
  const int64_t tiles = (end - begin + kTileRows - 1) / kTileRows;
  parallel_for(tiles, kTileRows * weight.k * (rows + 2), [&](int64_t first, int64_t last) {
    const std::unique_ptr<float[]> decoded(new float[static_cast<size_t>(kTileRows * weight.k)]);
    std::vector<float> tile(static_cast<size_t>(rows * kTileRows));
    for (int64_t t = first; t < last; ++t) {
      const int64_t offset = t * kTileRows;
      const int64_t count = std::min(kTileRows, end - begin - offset);
      project_tile(x.data(), rows, weight, begin + offset, count, decoded.get(), tile.data());
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t j = 0; j < count; ++j) {
          y[r * y_stride + offset + j] = from_float<T>(tile[r * kTileRows + j]);
        }
      }
    }
  });
}

}  // namespace

template <class TIn, class TOut>
void linear(const TIn* x, int64_t rows, const Weight& weight, bool quantize_input, TOut* y) {
  for (int64_t start = 0; start < rows; start += kRowBlock) {
    const int64_t count = std::min(kRowBlock, rows - start);
    const InputRows inputs(x + start * weight.k, count, weight.k, quantize_input);
    std::vector<const float*> pointers;
    for (int64_t r = 0; r < count; ++r) pointers.push_back(inputs.row(r));
    project<TOut>(pointers, weight, 0, weight.n, y + start * weight.n, weight.n);
  }
}

template <class T>
void grouped_linear(const T* x, int64_t rows, int64_t groups, const Weight& weight, T* y) {
  const int64_t size = weight.n / groups;
  for (int64_t start = 0; start < rows; start += kRowBlock) {
    const int64_t count = std::min(kRowBlock, rows - start);
    const InputRows inputs(x + start * groups * weight.k, count * groups, weight.k, false);
    for (int64_t g = 0; g < groups; ++g) {
      std::vector<const float*> pointers;
      for (int64_t r = 0; r < count; ++r) pointers.push_back(inputs.row(r * groups + g));
      T* target = y + start * weight.n + g * size;
      project<T>(pointers, weight, g * size, (g + 1) * size, target, weight.n);
    }
  }
}

template InputRows::InputRows(const float*, int64_t, int64_t, bool);
template InputRows::InputRows(const bf16*, int64_t, int64_t, bool);
template void linear<float, float>(const float*, int64_t, const Weight&, bool, float*);
template void linear<float, bf16>(const float*, int64_t, const Weight&, bool, bf16*);
template void linear<bf16, float>(const bf16*, int64_t, const Weight&, bool, float*);
template void linear<bf16, bf16>(const bf16*, int64_t, const Weight&, bool, bf16*);
template void grouped_linear<float>(const float*, int64_t, int64_t, const Weight&, float*);
template void grouped_linear<bf16>(const bf16*, int64_t, int64_t, const Weight&, bf16*);

}  // namespace di
