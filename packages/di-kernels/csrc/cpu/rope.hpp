#pragma once

#include <cstdint>

#include "numeric.hpp"

namespace di {

// Rotates the last `dim` elements of every vector by the table row of its position; the others are copied.
// y may be x.
// x, y [rows, heads, width]; table [.., dim], cosines then sines; positions are valid rows of the table.
template <class T>
void apply_rope(const T* x, const int32_t* positions, const float* table, T* y, int64_t rows, int64_t heads,
                int64_t width, int64_t dim, bool inverse);

}  // namespace di
