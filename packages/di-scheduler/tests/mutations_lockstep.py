"""Defects of data-parallel lockstep (properties 33 to 35)."""

from .mutation import Mutation

_FILE = "src/di_scheduler/lockstep.py"

MUTATIONS = [
    Mutation(
        property=33,
        file=_FILE,
        before="            any_wants=not no_wants,",
        after="            any_wants=wants,",
        test="tests/test_lockstep.py::test_all_ranks_make_the_same_steps_with_as_many_votes",
    ),
    Mutation(
        property=33,
        file=_FILE,
        before="            longest_wait=-wait,",
        after="            longest_wait=self._wait,",
        test="tests/test_lockstep.py::test_all_ranks_make_the_same_steps_with_as_many_votes",
    ),
    Mutation(
        property=34,
        file=_FILE,
        before="            if self._anybody(plan):",
        after="            if self._anybody(plan) or True:",
        test="tests/test_lockstep.py::test_when_nobody_has_a_prefill_the_group_decodes_in_the_same_step",
    ),
    Mutation(
        property=34,
        file=_FILE,
        before="            if not group.any_decodes:",
        after="            if group.any_decodes:",
        test="tests/test_lockstep.py::test_when_nobody_has_a_prefill_the_group_decodes_in_the_same_step",
    ),
    Mutation(
        property=35,
        file=_FILE,
        before="        return not group.any_objects or group.longest_wait >= self.max_prefill_wait",
        after="        return not group.any_objects",
        test="tests/test_lockstep.py::test_a_prompt_that_could_start_does_so_within_the_bound",
    ),
    Mutation(
        property=35,
        file=_FILE,
        before="        if steps and steps % self.any_every == 0:",
        after="        if steps and steps % self.all_every == 0:",
        test="tests/test_lockstep.py::test_a_prompt_that_could_start_does_so_within_the_bound",
    ),
]
