"""One-line defects of speculation planning, and the test that must catch each."""

from .mutation import Mutation

_PLANNER = "csrc/scheduler/speculation.cpp"
_COST = "csrc/scheduler/step_cost.cpp"
_SORT = "csrc/scheduler/rate_sort.cpp"
_MEDIANS = "csrc/scheduler/medians.cpp"
_CALIBRATION = "csrc/scheduler/calibration.cpp"

_TOTAL = "tests/test_speculation.py::test_the_total_is_the_smallest_best_of_all_choices"
_SPLIT = "tests/test_speculation.py::test_the_split_keeps_the_total_and_every_first_row"
_CAUSAL = "tests/test_speculation.py::test_later_confidences_never_decide_about_a_draft"
_DEVICE = "tests/test_speculation.py::test_the_split_equals_the_device_ranking"
_SLIDING = "tests/test_medians.py::test_sliding_median"
_GROUPED = "tests/test_medians.py::test_grouped_median"
_CORRECTED = "tests/test_medians.py::test_step_times_are_corrected_by_medians"

MUTATIONS = [
    Mutation(  # the largest of equal totals
        property=29,
        file=_PLANNER,
        before="if (candidate > best) {",
        after="if (candidate >= best) {",
        test=_TOTAL,
    ),
    Mutation(  # gives up at the first total that is no better
        property=29,
        file=_PLANNER,
        before="    if (candidate > best) {",
        after="    if (candidate <= best) break;\n    if (candidate > best) {",
        test=_TOTAL,
    ),
    Mutation(  # the sequences' own tokens are forgotten
        property=29,
        file=_PLANNER,
        before="double expected = num_seqs;",
        after="double expected = 0.0;",
        test=_TOTAL,
    ),
    Mutation(  # costs of the size below
        property=29,
        file=_PLANNER,
        before="while (rows > piece->last) ++piece;",
        after="while (rows > piece->last + 1) ++piece;",
        test=_TOTAL,
    ),
    Mutation(  # a falling last slope goes on for ever
        property=29,
        file=_COST,
        before="std::max(0.0, per_row)});",
        after="per_row});",
        test="tests/test_speculation.py::test_step_times_follow_the_curve",
    ),
    Mutation(  # more rows than chosen
        property=29,
        file=_PLANNER,
        before="const std::uint64_t last = ranked[total - 1];",
        after="const std::uint64_t last = ranked[std::min<std::size_t>(total, ranked.size() - 1)];",
        test=_SPLIT,
    ),
    Mutation(  # rates of large batches are sorted by all digits but the last
        property=29,
        file=_SORT,
        before="for (int digit = 0; digit < kDigits; ++digit) {",
        after="for (int digit = 1; digit < kDigits; ++digit) {",
        test="tests/test_speculation.py::test_the_best_of_many_drafts_is_found_by_its_last_bit",
    ),
    Mutation(  # a draft is worth what the draft after it is
        property=30,
        file=_PLANNER,
        before="const float confidence = confidences[i];",
        after="const float confidence = confidences[std::min(i + 1, confidences.size() - 1)];",
        test=_CAUSAL,
    ),
    Mutation(  # worst drafts first
        property=31,
        file=_PLANNER,
        before="static_cast<std::uint64_t>(~std::bit_cast<std::uint32_t>(rate + 0.0f))",
        after="static_cast<std::uint64_t>(std::bit_cast<std::uint32_t>(rate + 0.0f))",
        test=_DEVICE,
    ),
    Mutation(  # among equals the later draft wins
        property=31,
        file=_PLANNER,
        before="<< 32 | index;",
        after="<< 32 | ~index;",
        test=_DEVICE,
    ),
    Mutation(  # confidences instead of their products
        property=31,
        file=_PLANNER,
        before="rate *= confidence > 0.0f",
        after="rate = confidence > 0.0f",
        test=_DEVICE,
    ),
    Mutation(  # the middle of an even number of samples is the lower one
        property=32,
        file=_MEDIANS,
        before="return lower_.size() > upper_.size() ? low : std::midpoint(low, *upper_.begin());",
        after="return low;",
        test=_SLIDING,
    ),
    Mutation(  # all copies of the sample that leaves go with it
        property=32,
        file=_MEDIANS,
        before="half.erase(half.find(value));",
        after="half.erase(value);",
        test=_SLIDING,
    ),
    Mutation(  # a group keeps its vote when too few of its samples are left
        property=32,
        file=_MEDIANS,
        before="  if (counts(group->second)) medians_.insert(group->second.median());",
        after="  if (group->second.size() > 0) medians_.insert(group->second.median());",
        test=_GROUPED,
    ),
    Mutation(  # a device that is faster than its curve makes drafts free
        property=32,
        file=_CALIBRATION,
        before="cost_.set_slope(std::max(0.0, slope_.value().value_or(0.0)));",
        after="cost_.set_slope(slope_.value().value_or(0.0));",
        test="tests/test_medians.py::test_steps_faster_than_the_curve_leave_it_alone",
    ),
    Mutation(  # the sampler's time for any number of sequences is never used
        property=32,
        file=_COST,
        before="return known ? sampler_[index] : default_sampler_;",
        after="return known ? sampler_[index] : 0.0;",
        test=_CORRECTED,
    ),
    Mutation(  # finding 21: a step larger than the curve
        property=32,
        file=_CALIBRATION,
        before="if (rows > cost_.max_rows() || ",
        after="if (",
        test="tests/test_medians.py::test_a_step_beyond_a_stepped_curve_teaches_nothing",
    ),
    Mutation(  # the fastest run counts
        property=29,
        file="src/di_scheduler/cost_curve.py",
        before="kept = sorted(seconds)[1:-1]",
        after="kept = sorted(seconds)[:-1]",
        test="tests/test_cost_curve.py::test_the_warm_up_the_fastest_and_the_slowest_run_do_not_count",
    ),
]
"""Properties 29 to 32; the curve's own measurement stands under 29, whose total it decides."""
