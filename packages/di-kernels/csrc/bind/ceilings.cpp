#include "simd/ceilings.hpp"

#include <atomic>

#include "bind/tensor.hpp"
#include "parallel.hpp"

namespace di::bind {
namespace {

constexpr int64_t kLine = 64;

// Each of num_threads() threads runs `iterations`; the operations of all together.
int64_t run_everywhere(int64_t iterations, int64_t flops, float (*loop)(int64_t)) {
  require(iterations >= 0, "iterations must not be negative");
  const int64_t threads = num_threads();
  std::atomic<float> result{0.0f};  // so that the loop has to be computed
  parallel_for(threads, work_per_thread(), [&](int64_t begin, int64_t end) {
    const FlushedSubnormals flushed;
    for (int64_t i = begin; i < end; ++i) result.store(loop(iterations), std::memory_order_relaxed);
  });
  return threads * iterations * flops;
}

}  // namespace

void bind_ceilings(nb::module_& m) {
  m.def("read_memory", [](View buffer) {
    const auto bytes = dense<uint8_t, 1>(buffer, "buffer");
    std::atomic<uint64_t> all{0};
    parallel_for(bytes.shape[0] / kLine, kLine, [&](int64_t begin, int64_t end) {
      all ^= ceilings_simd::active().read(bytes.data + begin * kLine, (end - begin) * kLine);
    });
    return all.load();
  });
  m.def("dot_peak", [](int64_t iterations) {
    return run_everywhere(iterations, ceilings_simd::kDotFlops, ceilings_simd::active().dot_bf16);
  });
  m.def("multiply_add_peak", [](int64_t iterations) {
    return run_everywhere(iterations, ceilings_simd::kMultiplyAddFlops, ceilings_simd::active().multiply_add);
  });
}

}  // namespace di::bind
