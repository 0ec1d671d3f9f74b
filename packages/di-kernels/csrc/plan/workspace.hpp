// Memory of one step: handed out in order, taken back all at once. It grows when a larger step comes, and
// only then; a step like those before it allocates nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace di::plan {

class Workspace {
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kSmallest = 1 << 20;

 public:
  // Uninitialised values that stay until the scope around them ends, or the step does.
  template <class T>
  T* take(int64_t n) {
    return static_cast<T*>(bytes(static_cast<size_t>(n) * sizeof(T)));
  }

  // Takes back, at its end, what was taken within it.
  class Scope {
   public:
    explicit Scope(Workspace& workspace)
        : workspace_(workspace), block_(workspace.block_), used_(workspace.used_) {}
    ~Scope() {
      workspace_.block_ = block_;
      workspace_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    size_t block_, used_;
  };

  // Bytes held.
  int64_t size() const {
    size_t total = 0;
    for (const Block& block : blocks_) total += block.size;
    return static_cast<int64_t>(total);
  }

  // Begins a step: what an earlier one needed several blocks for is one block from now on.
  void reset() {
    if (blocks_.size() > 1) {
      const auto total = static_cast<size_t>(size());
      blocks_.clear();
      blocks_.emplace_back(total);
    }
    block_ = used_ = 0;
  }

 private:
  struct Free {
    void operator()(uint8_t* p) const { ::operator delete[](p, std::align_val_t{kAlignment}); }
  };
  struct Block {
    explicit Block(size_t bytes)
        : size(bytes), data(static_cast<uint8_t*>(::operator new[](bytes, std::align_val_t{kAlignment}))) {}
    size_t size;
    std::unique_ptr<uint8_t[], Free> data;
  };

  void* bytes(size_t n) {
    n = (n + kAlignment - 1) / kAlignment * kAlignment;
    while (block_ < blocks_.size() && used_ + n > blocks_[block_].size) {
      ++block_;
      used_ = 0;
    }
    if (block_ == blocks_.size()) blocks_.emplace_back(std::max(n, kSmallest));
    uint8_t* p = blocks_[block_].data.get() + used_;
    used_ += n;
    return p;
  }

  std::vector<Block> blocks_;
  size_t block_ = 0, used_ = 0;
};

}  // namespace di::plan
