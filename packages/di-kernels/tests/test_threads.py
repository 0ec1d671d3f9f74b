"""What threads must not change: bits under any arithmetic mode of the caller, and errors that reach it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from di_kernels import num_threads, pin_threads, set_num_threads
from di_kernels.ops.formats import EntryFormat, encode
from di_kernels.ops.hyper import stream_mean
from di_kernels.ops.linear import LinearWeight, linear
from di_kernels.ops.norm import rms_norm
from di_kernels.ops.sampling import apply_bias, apply_penalties
from di_kernels.testing import Hostile, assert_same_bits, hostile, threads
from torch import Tensor

SMALL = hostile(Hostile.SUBNORMALS, 16, 64)
ONES, SIGNS = torch.ones(64), LinearWeight.dense(SMALL.sign())
BIAS = torch.full((16,), 2.0**-130)


def edited(edit: Callable[..., None], *values: Tensor) -> Tensor:
    """Subnormal logits after an edit of the first token of every row."""
    logits = SMALL.clone()
    edit(logits, torch.arange(17), torch.zeros(16, dtype=torch.int64), *values)
    return logits


OPERATIONS: dict[str, Callable[[], Tensor]] = {
    "rms_norm": lambda: rms_norm(SMALL, ONES, 1e-20),
    "linear": lambda: linear(SMALL, SIGNS),
    "stream_mean": lambda: stream_mean(SMALL.view(4, 4, 64)),
    "encode": lambda: encode(SMALL, EntryFormat.MXFP4)[0],
    "apply_bias": lambda: edited(apply_bias, BIAS),
    "apply_penalties": lambda: edited(
        apply_penalties,
        torch.ones(16, dtype=torch.int32),
        torch.full((16,), 2.0),
        torch.zeros(16),
        torch.zeros(16),
    ),
}


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_flushing_subnormals_in_the_caller_changes_nothing(name: str) -> None:
    """The mode belongs to one thread: what its workers do must not differ from what it does."""
    operation = OPERATIONS[name]
    with threads(2):
        expected = operation()  # the workers exist before the mode is set
    for count in (1, 2):
        assert torch.set_flush_denormal(True)
        try:
            with threads(count):
                actual = operation()
        finally:
            torch.set_flush_denormal(False)
        assert_same_bits(actual, expected)


def test_the_mode_of_the_caller_is_left_as_it_was() -> None:
    smallest = torch.tensor([2.0**-149])
    torch.set_flush_denormal(True)
    try:
        rms_norm(SMALL, ONES, 1e-20)
        flushed = smallest * 1.0
    finally:
        torch.set_flush_denormal(False)
    assert flushed.item() == 0.0
    rms_norm(SMALL, ONES, 1e-20)
    assert (smallest * 1.0).item() == smallest.item()


OUT_OF_MEMORY = """
import resource
import torch
from di_kernels.ops.moe import route
from di_kernels.testing import threads

experts = 1 << 25  # each thread needs room for the scores of a row
logits, bias = torch.zeros(2, experts), torch.zeros(experts)
with threads(2):
    route(torch.ones(2, 1), torch.ones(1), 1, 1.0)
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (100 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for count in (1, 2):
    with threads(count):
        try:
            route(logits, bias, 1, 1.0)
        except MemoryError:
            print("MemoryError")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory the Linux way")
@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer ends the process itself"
)
def test_running_out_of_memory_in_a_thread_is_an_error_not_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", OUT_OF_MEMORY], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ["MemoryError"] * 2), done.stderr


@pytest.mark.parametrize(
    "value", [0, -1, True, 1.0, None, "2", 2**63, pytest.param(10**5000, id="5001 digits")]
)
def test_wrong_counts_are_refused(value: object) -> None:
    before = num_threads()
    with pytest.raises(ValueError, match=r"count is .*; it must be an integer from 1 to 4096"):
        set_num_threads(value)  # type: ignore[arg-type]
    if value is not None:
        with pytest.raises(ValueError, match="work_per_thread is"):
            set_num_threads(before, work_per_thread=value)  # type: ignore[arg-type]
    assert num_threads() == before


@pytest.mark.parametrize("count", [4097, 10**9, 2**31])
def test_more_threads_than_any_machine_has_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"count is {count}; it must be an integer from 1 to 4096"):
        set_num_threads(count)


def test_the_largest_work_keeps_everything_on_one_thread() -> None:
    before, expected = num_threads(), rms_norm(SMALL, ONES, 1e-20)
    try:
        set_num_threads(2, work_per_thread=2**63 - 1)
        assert_same_bits(rms_norm(SMALL, ONES, 1e-20), expected)
        assert num_threads() == 2
    finally:
        set_num_threads(before)


FORK = """
import os, signal, torch
from di_kernels import num_threads, pin_threads, set_num_threads
from di_kernels.ops.linear import LinearWeight, linear
x, weight = torch.ones(64, 256), LinearWeight.dense(torch.ones(256, 256))
set_num_threads(2)
before = linear(x, weight)
child = os.fork()
if child == 0:
    signal.alarm(20)  # a child that waits for threads it does not have is ended
    set_num_threads(2)
    os._exit(0 if num_threads() == 1 and torch.equal(linear(x, weight), before) else 1)
assert num_threads() == 2
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_computes_on_one_thread() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)


FORK_WHILE_PINNING = """
import os, signal, threading, torch
from di_kernels import pin_threads, set_num_threads
from di_kernels.ops.norm import rms_norm

x, weight, done = torch.ones(64, 64), torch.ones(64), threading.Event()
set_num_threads(2, work_per_thread=1)
rms_norm(x, weight, 1e-20)  # a child forked while another thread imports the kernels would wait for that

def work(number):
    while not done.is_set():
        pin_threads(number % 2 == 0)
        rms_norm(x, weight, 1e-20)

workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
for worker in workers:
    worker.start()
try:
    for _ in range(40):
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            rms_norm(x, weight, 1e-20)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
finally:
    done.set()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_threads_are_pinned_computes() -> None:
    subprocess.run([sys.executable, "-c", FORK_WHILE_PINNING], check=True, timeout=60)


PIN = """
import os, torch
from pathlib import Path
from di_kernels import pin_threads, set_num_threads, threads_are_pinned
from di_kernels.ops.norm import rms_norm

def run():
    return rms_norm(torch.arange(4096, dtype=torch.float32).view(64, 64), torch.ones(64), 1e-20)

def places():  # of the threads that run nowhere else
    masks = [os.sched_getaffinity(int(task.name)) for task in Path("/proc/self/task").iterdir()]
    return sorted(next(iter(mask)) for mask in masks if len(mask) == 1)

allowed = os.sched_getaffinity(0)
torch.set_num_threads(1)
set_num_threads(min(2, len(allowed)), work_per_thread=1)
before = run()
pin_threads(True)
assert threads_are_pinned() and torch.equal(run(), before)
if len(allowed) > 1:
    assert places() == sorted(allowed)[:2], places()
assert os.sched_getaffinity(0) == {min(allowed)}
pin_threads(True)
pin_threads(False)
pin_threads(True)  # at once: this thread still is where it was pinned
assert torch.equal(run(), before)
if len(allowed) > 1:
    assert places() == sorted(allowed)[:2], places()
pin_threads(False)
assert not threads_are_pinned() and torch.equal(run(), before)
assert os.sched_getaffinity(0) == allowed
if len(allowed) > 1:
    assert places() == []
"""


KEEP = """
import os, threading, torch
from di_kernels import pin_threads, set_num_threads
from di_kernels.ops.norm import rms_norm

def run():
    rms_norm(torch.ones(64, 64), torch.ones(64), 1e-20)

def on_a_thread(body):
    failures = []
    def caught():
        try:
            body()
        except BaseException as error:
            failures.append(error)
    thread = threading.Thread(target=caught)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]

def stays_where_it_is():  # pinned never, so never let go
    os.sched_setaffinity(0, {last})
    run()
    assert os.sched_getaffinity(0) == {last}

def is_pinned_among_its_own():
    os.sched_setaffinity(0, {last})
    pin_threads(True)
    run()
    assert os.sched_getaffinity(0) == {last}
    pin_threads(False)
    run()
    assert os.sched_getaffinity(0) == {last}

allowed = os.sched_getaffinity(0)
last = max(allowed)
set_num_threads(1)
pin_threads(True)
run()
pin_threads(False)
on_a_thread(stays_where_it_is)
on_a_thread(is_pinned_among_its_own)
run()
assert os.sched_getaffinity(0) == allowed
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no processor affinity")
def test_a_thread_that_was_not_pinned_stays_where_the_program_put_it() -> None:
    subprocess.run([sys.executable, "-c", KEEP], check=True, timeout=120)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no processor affinity")
def test_pinned_threads_have_a_processor_each_and_are_let_go_again() -> None:
    subprocess.run([sys.executable, "-c", PIN], check=True, timeout=120)


def test_pinning_is_on_or_off() -> None:
    with pytest.raises(TypeError, match="on is 1"):
        pin_threads(1)  # type: ignore[arg-type]
