#include "simd/ceilings.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

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
  for_parts(threads, threads, [&](int64_t begin, int64_t end) {
    const FlushedSubnormals flushed;
    for (int64_t i = begin; i < end; ++i) result.store(loop(iterations), std::memory_order_relaxed);
  });
  return threads * iterations * flops;
}

// Whole lines of a buffer, at most kPiece bytes.
struct Piece {
  const uint8_t* data;
  int64_t bytes;
};
constexpr int64_t kPiece = int64_t{1} << 18;

// Buffers to read, which must outlive it.
class MemoryRead {
 public:
  explicit MemoryRead(const nb::list& buffers) {
    for (const nb::handle buffer : buffers) {
      View view;
      if (!borrow(buffer, &view)) throw nb::type_error("a buffer must be a tensor");
      const auto bytes = dense<uint8_t, 1>(view, "buffer");
      const int64_t whole = bytes.shape[0] / kLine * kLine;
      for (int64_t i = 0; i < whole; i += kPiece) {
        pieces_.push_back({bytes.data + i, std::min(kPiece, whole - i)});
      }
    }
  }

  uint64_t run() const {
    std::atomic<uint64_t> all{0};
    const auto count = static_cast<int64_t>(pieces_.size());
    parallel_for_uneven(count, kPiece, [&](int64_t begin, int64_t end) {  // the last of a buffer is shorter
      uint64_t part = 0;
      for (int64_t i = begin; i < end; ++i) {
        part ^= ceilings_simd::active().read(pieces_[i].data, pieces_[i].bytes);
      }
      all ^= part;
    });
    return all.load();
  }

 private:
  std::vector<Piece> pieces_;
};

}  // namespace

void bind_ceilings(nb::module_& m) {
  nb::class_<MemoryRead>(m, "MemoryRead").def(nb::init<const nb::list&>()).def("run", &MemoryRead::run);
  m.def("dot_peak", [](int64_t iterations) {
    const auto& simd = ceilings_simd::active();
    return run_everywhere(iterations, simd.dot_flops, simd.dot_bf16);
  });
  m.def("multiply_add_peak", [](int64_t iterations) {
    return run_everywhere(iterations, ceilings_simd::kMultiplyAddFlops, ceilings_simd::active().multiply_add);
  });
}

}  // namespace di::bind
