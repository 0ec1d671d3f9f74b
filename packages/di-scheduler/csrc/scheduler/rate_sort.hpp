// Sorting of acceptance rates, the larger part of choosing a draft total.
#pragma once

#include <vector>

namespace di::scheduler {

// Sorts numbers from 0 to 1 (no NaN, no -0) so that the largest comes first.
void sort_descending(std::vector<float>& rates);

}  // namespace di::scheduler
