"""``di bench kernels``: what is counted, what is divided by what, and what is printed."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from di_engine.benchmark import timing
from di_engine.benchmark.kernels import FAMILIES, kernel_recipes
from di_engine.benchmark.layer import stored_tensors
from di_engine.benchmark.measure import (
    REPEATS,
    Case,
    Peer,
    Reached,
    Recipe,
    as_bytes,
    last_level_cache,
    measure,
    pool_members,
    settle,
    using_threads,
)
from di_engine.benchmark.random_weights import RandomBytes
from di_engine.benchmark.record import RecordError, read_record
from di_engine.benchmark.release import layers_config, released_config
from di_engine.benchmark.timing import Least, LeastTime, longest_wait, thread_waits
from di_engine.benchmark.work import Ceilings, Work, attention_work, index_work, linear_work
from di_engine.cli import bench_output, common, run
from di_engine.cli.bench_output import print_reached
from di_kernels import num_threads
from di_kernels.ops.formats import EntryFormat
from di_kernels.ops.hyper import HyperMixes
from di_kernels.ops.linear import WeightFormat
from di_kernels.testing import shared_directory
from di_model.config import ModelConfig
from di_model.tensors import expected_tensors

MACHINE = dict.fromkeys(
    ("date", "processor", "cores", "memory", "last_level_cache", "instruction_set", "versions"), ""
)
RECORD = '{"benchmark": "", "foreign_load": null, "machine": MACHINE, "results": RESULTS}'.replace(
    "MACHINE", json.dumps(MACHINE)
)
"""To be filled in with its results."""


def test_work_is_what_the_formats_and_shapes_say() -> None:
    weight = RandomBytes().mxfp4(64, 96)
    assert weight.nbytes == 64 * 48 + 64 * 3
    assert linear_work(weight.nbytes, 5, 64, 96) == Work(64 * 51, 2 * 5 * 64 * 96)
    # A window record of 512 FP8 values has 16 scales, an entry of 512 FP4 values has 32.
    work = attention_work(2, 64, 512, (128, EntryFormat.FP8), (512, EntryFormat.FP4))
    assert work == Work(2 * (128 * 528 + 512 * 288), 2 * 64 * 640 * 512 * 4)
    assert index_work(1, 32, 128, 1000) == Work(1000 * 68, 1000 * 32 * 128 * 2)
    assert Work(1, 2) + Work(3, 4) == Work(4, 6)


def test_the_longer_of_reading_and_computing_binds() -> None:
    ceilings = Ceilings(read=100.0, dot=1000.0)
    assert ceilings.floor(Work(200, 500)) == 2.0
    assert ceilings.memory_bound(Work(200, 500))
    assert ceilings.floor(Work(200, 5000)) == 5.0
    assert not ceilings.memory_bound(Work(200, 5000))


def test_each_member_counts_with_its_least_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now, thread_time=lambda: 0.0))
    lengths = iter([3.0, 1.0, 2.0, 4.0])

    def call() -> None:
        nonlocal now
        now += next(lengths)

    least = Least([call, call])
    assert least.total == float("inf")
    least.round()
    assert least.total == 3.0 + 1.0
    least.round()
    assert least.total == 2.0 + 1.0


def test_time_that_others_had_is_left_out_of_long_calls_on_one_thread() -> None:
    def interrupted() -> None:
        time.sleep(0.05)

    waited, worked = Least([interrupted]), Least([interrupted], alone=True)
    for least in (waited, worked):
        least.round()
    assert waited.total >= 0.05
    assert worked.total < 0.05


def test_a_least_time_tells_whether_a_thread_had_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[dict[str, int]] = []
    monkeypatch.setattr(timing, "thread_waits", lambda: waits.pop(0))
    least = LeastTime()

    def timed(seconds: float, before: int, after: int) -> tuple[float, bool, int]:
        waits[:] = [{"7": 5, "8": before}, {"7": 5, "8": after, "9": 10**9}]  # the last one is new
        least.begin()
        least.end(seconds)
        return least.seconds, least.disturbed, len(waits)

    assert timed(0.010, 10**6, 3 * 10**6) == (0.010, True, 0)
    assert timed(0.011, 0, 0) == (0.010, True, 1)  # longer than the least: nothing is changed, nor asked
    assert timed(0.010 - 1e-6, 0, 10**6) == (0.010 - 1e-6, False, 0)
    assert timed(0.009, 0, 2 * 10**6) == (0.009, True, 0)
    assert timed(0.0001, 0, 2 * 10**6) == (0.0001, False, 1)  # too short to be interrupted in every round
    assert timed(0.00005, 0, 0) == (0.00005, False, 2)


@pytest.mark.skipif(not timing.THREADS.exists(), reason="the system does not tell how long threads wait")
def test_waiting_is_told_for_every_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        number = str(pool.submit(threading.get_native_id).result())
        start = time.perf_counter()  # first: a wait from here on is within what is measured
        before = thread_waits()
        assert {number, str(threading.get_native_id())} <= before.keys()
        assert 0 <= longest_wait(before, thread_waits()) <= time.perf_counter() - start + 1e-3
    assert longest_wait({}, {}) == 0.0


def test_where_the_system_does_not_tell_of_waiting_nothing_counts_as_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "THREADS", tmp_path / "nothing")
    assert thread_waits() == {}
    least = Least([lambda: time.sleep(0.002)])
    least.round()
    assert not least.disturbed


def test_a_case_is_measured_beside_its_ceilings_and_its_peer() -> None:
    buffer = torch.zeros(1 << 16, dtype=torch.uint8)
    called = []
    case = Case(
        family="family",
        name="name",
        size="size",
        rows=3,
        work=Work(1 << 16, 1000),
        members=(lambda: called.append("a"), lambda: called.append("b")),
        buffers=((buffer,), (buffer,)),
        peer=Peer("sleep", (lambda: time.sleep(0.001),), 1),
    )
    with using_threads(2):
        reached = measure(case, 0.0)
    assert (reached.family, reached.name, reached.size, reached.rows) == ("family", "name", "size", 3)
    assert (reached.threads, reached.rounds) == (2, 4)
    assert called == ["a", "b"] * (1 + 4 * REPEATS)  # as often as the ceilings, behind a first time
    assert reached.peer == "sleep"
    assert reached.peer_seconds is not None
    assert reached.peer_seconds >= 0.001
    assert reached.peer_ratio == reached.peer_seconds / reached.seconds
    assert reached.bandwidth == (1 << 16) / reached.seconds
    assert reached.flops == 1000 / reached.seconds
    assert reached.of_floor == reached.ceilings.floor(case.work) / reached.seconds
    assert reached.ceilings.read > 1e7
    assert reached.ceilings.dot > 1e7


def test_a_run_has_one_dot_peak_and_tells_who_did_not_see_it() -> None:
    def reached(threads: int, dot: float) -> Reached:
        return Reached("f", "n", "s", 1, threads, Work(1), 1.0, Ceilings(1.0, dot), 3, None, None, None)

    waited = replace(reached(1, 99.0), disturbed=True)
    found = settle([waited, reached(1, 100.0), reached(2, 190.0), reached(1, 90.0), reached(2, 40.0)])
    assert [each.ceilings.dot for each in found] == [100.0, 100.0, 190.0, 100.0, 190.0]
    assert [each.disturbed for each in found] == [True, False, False, False, True]


def test_threads_are_set_and_given_back() -> None:
    before = num_threads(), torch.get_num_threads()
    with using_threads(1):
        assert (num_threads(), torch.get_num_threads()) == (1, 1)
    assert (num_threads(), torch.get_num_threads()) == before


def test_a_pool_does_not_fit_into_the_cache() -> None:
    assert pool_members(1 << 20, 1) << 20 >= 4 * last_level_cache()
    assert pool_members(1 << 40, 1) == 2
    assert pool_members(1 << 20, 64) == 3


def test_buffers_are_the_bytes_of_their_tensors() -> None:
    one, two = torch.arange(6, dtype=torch.float32).view(2, 3), torch.zeros(5, dtype=torch.uint8)
    buffers = as_bytes(one, None, two)
    assert [len(buffer) for buffer in buffers] == [24, 5]
    assert buffers[0].data_ptr() == one.data_ptr()


@pytest.mark.parametrize("make", [RandomBytes.fp8, RandomBytes.mxfp4, RandomBytes.bfloat16])
def test_random_weights_have_rows_of_about_unit_length(make: object) -> None:
    weight = make(RandomBytes(), 64, 1024)  # type: ignore[operator]
    values = weight.dequantize()
    assert weight.shape == (64, 1024)
    assert bool(values.isfinite().all())
    assert 0.5 < float(values.norm(dim=1).mean()) < 2.0


def test_random_tensors_are_those_of_a_checkpoint() -> None:
    config = ModelConfig.from_dict(_tiny())
    specs = expected_tensors(config)
    tensors = RandomBytes().tensors(specs.values())
    for name, spec in specs.items():
        assert tuple(tensors[name].shape) == spec.shape
        assert tensors[name].nbytes == spec.nbytes


def _tiny() -> dict[str, object]:
    from di_model.testing import tiny_config

    return tiny_config()


def test_the_released_sizes_are_those_of_the_release() -> None:
    shared = shared_directory(__file__)
    if shared is None:
        pytest.skip("the directory `shared` with the released configuration is not beside this repository")
    assert released_config().text == ModelConfig.from_file(shared / "data" / "deepseek-v4.1").text


def test_one_layer_of_each_kind_has_full_size() -> None:
    config = layers_config(8, 64)
    kinds = [
        (role.ratio, role.is_kv_source, role.is_index_source, role.engram is not None)
        for role in config.text.layers
    ]
    assert kinds == [
        (0, False, False, False),
        (0, False, False, True),
        (2, True, True, False),
        (2, False, False, False),
        (1, True, True, False),
        (1, False, False, False),
        (1, False, True, False),
    ]
    assert config.text.hidden_size == released_config().text.hidden_size
    assert config.text.n_routed_experts == 8


def test_recipes_are_found_by_family_and_title() -> None:
    titles = [recipe.title for family in FAMILIES for recipe in kernel_recipes([family])]
    assert len(set(titles)) == len(titles)
    assert [recipe.title for recipe in kernel_recipes(["linear"], "MXFP4 as stored, 4096x4096")] == [
        f"MXFP4 as stored, 4096x4096, rows {rows}" for rows in (1, 8, 64, 512)
    ]
    case = kernel_recipes(["linear"], "bfloat16 packed, 4096x4096, rows 64")[0].make()
    assert case.work == Work(2 * 4096 * 4096, 2 * 64 * 4096 * 4096)
    assert len(case.members) == len(case.buffers) == 3
    assert RandomBytes().bfloat16(32, 32).format is WeightFormat.BFLOAT16


@pytest.mark.parametrize(
    "recipe",
    [each for each in kernel_recipes(["step"]) if each.title.endswith("rows 1")],
    ids=lambda each: each.title,
)
def test_an_operation_of_a_step_counts_all_that_it_reads(recipe: Recipe) -> None:
    case = recipe.make()
    assert case.work == Work(sum(buffer.numel() for buffer in case.buffers[0]))
    counted = {buffer.data_ptr() for buffer in case.buffers[0]}
    call = case.members[0]
    assert isinstance(call, partial)
    for argument in call.args:
        # Of mixes, what becomes of the trunk needs no `pre`.
        read = argument[1:] if isinstance(argument, HyperMixes) else argument
        assert counted >= {tensor.data_ptr() for tensor in stored_tensors(read)}


def test_what_a_step_reads_is_counted_by_hand() -> None:
    def read(title: str) -> int:
        return kernel_recipes(["step"], title)[0].make().work.read

    trunk, coefficients = 16 * 4 * 5120 * 2, (24 + 3) * 4
    matrix = 24 * 4 * 5120 * 4
    assert read("mHC mixes, 20 Sinkhorn steps, rows 16") == matrix + coefficients + trunk
    pre, norm = 16 * 4 * 4, 5120 * 2
    assert read("mHC enter: mixes, pre, norm, MXFP8, rows 16") == matrix + coefficients + trunk + pre + norm
    post_and_comb = 16 * (4 + 16) * 4
    assert read("mHC post, rows 16") == trunk + 16 * 5120 * 2 + post_and_comb
    assert read("route, top 6 of 384, rows 16") == 16 * 384 * 4 + 384 * 4
    assert read("Engram gate and add, rows 16") == trunk + 16 * 5 * 5120 * 2 + 2 * 4 * 5120 * 2 + 16


def test_the_command_prints_a_table_and_writes_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "record.json"
    monkeypatch.setattr(bench_output, "usable_processors", lambda: 2)
    arguments = ["bench", "kernels", "--family", "top-k,sampling", "--match", "top 4096", "--seconds", "0"]
    assert run([*arguments, "--threads", "1,2", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "reached" in text
    assert "torch.topk" in text
    assert "other processes" in text
    written = json.loads(out.read_text())
    assert written["benchmark"] == "kernels"
    assert written["machine"]["cores"] >= 1
    results = read_record(out)["results"]
    assert [(each["family"], each["threads"]) for each in results] == [("top-k", 1), ("top-k", 2)]
    for each in results:
        assert each["of_floor"] == pytest.approx(each["floor_seconds"] / each["seconds"])
        assert each["read_bytes"] == 4 * 129280
        assert each["bound"] == "memory"


def test_the_command_runs_on_an_instruction_set(capsys: pytest.CaptureFixture[str]) -> None:
    from di_kernels import instruction_set

    before = instruction_set()
    arguments = [
        "bench",
        "kernels",
        "--family",
        "step",
        "--match",
        "route",
        "--threads",
        "1",
        "--seconds",
        "0",
    ]
    assert run([*arguments, "--instruction-set", "portable", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"]["instruction_set"] == "portable"
    assert instruction_set() == before


def test_a_disturbed_case_has_no_share(capsys: pytest.CaptureFixture[str]) -> None:
    case = Reached("step", "name", "s", 1, 2, Work(10**6), 1e-3, Ceilings(1e6, 1e9), 4, None, None, None)
    print_reached([case, replace(case, disturbed=True)])
    quiet, disturbed = capsys.readouterr().out.splitlines()[1:]
    assert quiet.endswith("100000 %")
    assert disturbed.endswith("disturbed")


def test_figures_are_whole_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "PIPE_WIDTH", 40)
    name = "a name of several words"
    work, ceilings = Work(657 * 10**12), Ceilings(43e9, 1e9)
    print_reached([Reached("step", name, "s", 1, 2, work, 657123.4, ceilings, 4, "torch", 12345.6, 1)])
    text = capsys.readouterr().out
    assert "…" not in text
    for figure in ("657,123,400,000.0", "43 GB/s", "12,345,600,000.0", *name.split()):
        assert figure in text
    assert max(map(len, text.splitlines())) > 40


@pytest.mark.parametrize("command", ["kernels", "layer", "model"])
def test_more_threads_than_processors_are_refused(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_output, "usable_processors", lambda: 4)
    assert run(["bench", command, "--threads", "1,99"]) == 2
    assert "--threads: got 99, allowed: 1 to 4, the processors" in capsys.readouterr().err


def test_what_is_given_twice_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_output, "usable_processors", lambda: 2)
    assert bench_output.thread_counts("2,1,2") == [2, 1]
    assert bench_output.names("--family", "step,linear,step", ("linear", "step")) == ["step", "linear"]


def test_one_and_two_threads_are_measured_where_there_are_two_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for processors, counts in ((1, [1]), (2, [1, 2]), (64, [1, 2])):
        monkeypatch.setattr(bench_output, "usable_processors", lambda processors=processors: processors)
        assert bench_output.thread_counts(None) == counts
    assert bench_output.thread_counts("64,3") == [64, 3]


@pytest.mark.parametrize(
    "option",
    [("--threads", "0"), ("--threads", "x"), ("--family", "nothing"), ("--instruction-set", "z80")],
)
def test_options_are_checked(option: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "kernels", *option]) == 2
    error = capsys.readouterr().err
    assert option[0] in error
    assert option[1] in error


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "the file is no object"),
        ("{}", "the file lacks benchmark, machine, results, foreign_load"),
        ('{"benchmark": 1, "machine": 1, "results": 1, "foreign_load": 1}', "machine is no object"),
        ('{"benchmark": 1, "machine": {}, "results": 1, "foreign_load": 1}', "machine lacks date"),
        (RECORD.replace("RESULTS", "{}"), "results is no list"),
        (RECORD.replace("RESULTS", "[1]"), r"results\[0\] is no object"),
        (RECORD.replace("RESULTS", '[{"family": "linear"}]'), r"results\[0\] lacks name, threads"),
    ],
)
def test_a_file_that_is_no_record_is_an_error(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(text)
    with pytest.raises(RecordError, match=f"record.json: no record of a benchmark: {reason}"):
        read_record(file)


@pytest.mark.parametrize("place", ["missing/result.json", "."])
def test_where_the_result_cannot_go_is_told_before_anything_is_measured(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / place
    begin = time.monotonic()
    assert run(["bench", "kernels", "--seconds", "1000", "--out", str(out)]) == 2
    assert time.monotonic() - begin < 60
    assert str(out) in capsys.readouterr().err


def test_a_match_in_no_title_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "kernels", "--family", "step", "--match", "no such operation"]) == 2
    assert "no such operation" in capsys.readouterr().err
    assert run(["bench", "kernels", "--family", "linear", "--match", "FP8 packed wq_b, rows 1"]) == 2
    assert "of linear, such as FP8 packed, wq_" in capsys.readouterr().err


def test_a_line_of_the_table_is_a_match() -> None:
    title = "FP8 packed, wq_a 1280x5120, rows 1"
    for match in (title, "FP8 packed  wq_a 1280x5120 rows 1", "fp8 packed wq_a"):
        assert title in [recipe.title for recipe in kernel_recipes(["linear"], match)]
    assert len(kernel_recipes(["linear"], "FP8 packed wq_a")) < len(kernel_recipes(["linear"], "FP8 packed"))
