#include "plan/engram.hpp"

#include <algorithm>

namespace di::plan {

template <class T>
void EngramPlan::run(Trunk<T>& trunk, const StepRows& step, Workspace& work) const {
  const Workspace::Scope scope(work);
  const int64_t rows = trunk.rows, n = hash.n;
  int32_t* tokens = work.take<int32_t>(rows * n);
  int64_t* windows = work.take<int64_t>(rows * n);
  int64_t* ids = work.take<int64_t>(rows * columns());
  bool* active = work.take<bool>(rows);
  T* looked_up = work.take<T>(rows * wkv.k);
  T* kv = work.take<T>(rows * wkv.n);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(step.last_tokens.data() + r * (step.lookback + 1), n, tokens + r * n);
  }
  engram_windows(tokens, rows, n, vocabulary, vocabulary_size, pad, windows);
  engram_hash(windows, rows, hash, ids);
  engram_gather<T>(ids, rows * columns(), table, looked_up);
  linear<T, T>(looked_up, rows, wkv, false, kv);  // the rows are the FP8 operand already
  for (int64_t r = 0; r < rows; ++r) active[r] = windows[r * n] >= 0;
  engram_inject<T>(trunk.stream, kv, weight, active, eps, rows, trunk.streams, trunk.dim, trunk.spare);
  trunk.swap_stream();
}

template void EngramPlan::run<float>(Trunk<float>&, const StepRows&, Workspace&) const;
template void EngramPlan::run<bf16>(Trunk<bf16>&, const StepRows&, Workspace&) const;

}  // namespace di::plan
