// One set of loops for each element type of activations.
#pragma once

#include <type_traits>

#include "numeric.hpp"

namespace di {

template <template <class> class Loops>
struct ByType {
  Loops<float> f32;
  Loops<bf16> b16;

  template <class T>
  const Loops<T>& of() const {
    if constexpr (std::is_same_v<T, float>) {
      return f32;
    } else {
      return b16;
    }
  }
};

}  // namespace di
