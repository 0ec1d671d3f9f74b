// Memory that a thread keeps from call to call, so that a step allocates nothing once it has seen its sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace di {

class Buffer {
 public:
  // Room for `count` elements at a 64-byte boundary. What was in it is lost when it grows.
  template <class T>
  T* reserve(int64_t count) {
    const auto bytes = static_cast<size_t>(count) * sizeof(T);
    if (bytes > size_) {
      data_.reset();
      size_ = 0;
      data_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{64})));
      size_ = bytes;
    }
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

}  // namespace di
