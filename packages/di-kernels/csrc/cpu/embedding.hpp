#pragma once

#include <cstdint>

#include "cpu/weight.hpp"
#include "numeric.hpp"

namespace di {

// y[r] = row ids[r] of the plain table [vocab, dim], converted to T; zeros for an id outside the table.
template <class T>
void embed(const int32_t* ids, int64_t rows, const Weight& table, T* y);

}  // namespace di
