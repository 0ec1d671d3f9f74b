"""Defects of the FLOPs estimator (property 43)."""

from .mutation import Mutation

_FILE = "src/di_scheduler/flops.py"

MUTATIONS = [
    Mutation(
        property=43,
        file=_FILE,
        before="            pairs += (n - head) * self.cap",
        after="            pairs += (n - head - 1) * self.cap",
        test="tests/test_flops.py::test_a_pair_count_is_the_sum_over_its_rows",
    ),
    Mutation(
        property=43,
        file=_FILE,
        before="            kept = np.stack((k, np.where(prefill, np.clip(cut, rows[1], k - 1), rows[1])))",
        after="            kept = np.stack((k, np.where(prefill, np.clip(cut, rows[1], k), rows[1])))",
        test="tests/test_flops.py::test_truncated_chunks",
    ),
    Mutation(
        property=43,
        file=_FILE,
        before="                    layer.ratio * entries, shape.candidate_blocks, shift=layer.ratio * (entries - 1)",
        after="                    layer.ratio * entries, shape.candidate_blocks, shift=layer.ratio * (entries - 2)",
        test="tests/test_flops.py::test_closed_forms_equal_brute_force",
    ),
    Mutation(
        property=43,
        file=_FILE,
        before="        pairs = prefix[0] - prefix[1]",
        after="        pairs = prefix[0] - prefix[1] // 2",
        test="tests/test_flops.py::test_pair_terms_add_up_over_chunks",
    ),
    Mutation(
        property=43,
        file=_FILE,
        before="        rows = np.stack((k, k - q))",
        after="        rows = np.stack((k - q, k))",
        test="tests/test_flops.py::test_more_rows_or_more_context_never_cost_less",
    ),
]
