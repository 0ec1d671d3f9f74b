"""Kernel settings of a verification run: in force inside, as before afterwards."""

from __future__ import annotations

import pytest
import torch
from di_engine.verify.settings import kernel_settings
from di_kernels import instruction_set, instruction_sets, num_threads


def settings() -> tuple[int, int, str]:
    return num_threads(), torch.get_num_threads(), instruction_set()


def test_settings_are_in_force_inside_and_undone_after_an_error():
    before = settings()
    with kernel_settings(num_threads=2, instruction_set="portable"):
        assert settings() == (2, 2, "portable")
    assert settings() == before
    with pytest.raises(KeyError), kernel_settings(num_threads=2, instruction_set="portable"):
        raise KeyError
    assert settings() == before
    with kernel_settings(num_threads=1):
        assert settings() == (1, 1, before[2])


@pytest.mark.parametrize(("threads", "name"), [(0, "portable"), (1, "sse9"), (1, "")])
def test_what_the_kernels_do_not_have_is_refused_and_changes_nothing(threads, name):
    before = settings()
    with (
        pytest.raises(ValueError, match=r"count is 0|'(sse9)?'.*" + instruction_sets()[-1]),
        kernel_settings(num_threads=threads, instruction_set=name),
    ):
        pass
    assert settings() == before
