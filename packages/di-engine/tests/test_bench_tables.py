"""``benchmarks/tables.py``: figures of records in a document."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "tables.py"
MACHINE = {
    "date": "2026-11-30 00:00",
    "processor": "a processor",
    "cores": 2,
    "memory": 1 << 34,
    "last_level_cache": 32 << 20,
    "instruction_set": "avx2",
    "versions": ["torch 2.13", "numpy 2", "Python 3.11"],
}
DOCUMENT = """before
<!-- machine -->
<!-- end -->
between
<!-- linear -->
old
<!-- end -->
<!-- layer -->
kept
<!-- end -->
<!-- model -->
<!-- end -->
<!-- peers -->
<!-- end -->
after
"""


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    if not SCRIPT.exists():
        pytest.skip("the package is tested without its repository")
    spec = importlib.util.spec_from_file_location("tables", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(threads: int, **changes: Any) -> dict[str, Any]:
    made = {
        "family": "linear",
        "name": "FP8 packed",
        "size": "64x64",
        "rows": 1,
        "threads": threads,
        "read_bytes": 4096,
        "flops": 8192,
        "seconds": 2e-5,
        "read_ceiling": 40e9,
        "dot_ceiling": 500e9,
        "bound": "memory",
        "of_floor": 0.9,
        "disturbed": False,
        "peer": None,
        "peer_seconds": None,
        "peer_ratio": None,
    }
    return {**made, **changes}


def record(benchmark: str, *results: dict[str, Any]) -> dict[str, Any]:
    load = {"cores": 0.25, "of": 2}
    return {"benchmark": benchmark, "machine": MACHINE, "results": results, "foreign_load": load}


def test_tables_take_the_place_of_old_ones(tables: ModuleType, tmp_path: Path) -> None:
    document, first, second = (tmp_path / name for name in ("document.md", "kernels.json", "model.json"))
    document.write_text(DOCUMENT)
    peer = {"peer": "torch", "peer_seconds": 4e-5, "peer_ratio": 2.0}
    first.write_text(json.dumps(record("kernels", result(1, **peer), result(2, disturbed=True))))
    step = {
        "name": "nano, decode",
        "family": "model",
        "sequences": 1,
        "tokens_per_second": 2500.4,
        "outside_seconds": 7e-5,
        "outside_share": 0.2,
    }
    other = {
        "family": "peer",
        "peer": "llama.cpp",
        "model": "nano",
        "name": "decode",
        "tokens": 1,
        "threads": 1,
        "step": {"minimum": 0.002},
        "read": 4e6,
        "flops": None,
        "ratio": 1.5,
    }
    second.write_text(json.dumps(record("model", result(1, **step), other)))
    assert tables.main([str(document), str(first), str(second)]) == 0
    text = document.read_text()
    line = "| FP8 packed | 64x64 | 1 | 20.0 | 90 % of 40 GB/s | 20.0 | disturbed | torch, 40 | 2.0 |"
    assert line in text
    assert "| nano | decode | 1 | 1 | 0.02 | 2,500 | 90 % of 40 GB/s | 70 | 20.0 % |" in text
    assert "| llama.cpp | nano | decode | 1 | 2.00 | 500 | 2.0 |  | 1.50 times |" in text
    assert "a processor: 2 cores, 16 GB" in text
    assert "Measured 2026-11-30 00:00 UTC." in text
    assert "at most: kernels 0.2, model 0.2." in text
    assert "old" not in text
    assert "kept" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert tables.main([str(document), str(first), str(second)]) == 0
    assert document.read_text() == text


def test_predictions_need_all_three_steps_on_one_thread(tables: ModuleType, tmp_path: Path) -> None:
    shares = dict(zip(tables.STEPS, (0.8, 0.6, 0.7), strict=True))
    results = [
        result(1, family="layer", size=step, of_floor=share, experts=8) for step, share in shares.items()
    ]
    text = tables.predictions(results)
    assert "80 % at batch 1, 60 % at batch 16, 70 % in prefill" in text
    assert "500 GFLOP/s a core" in text
    assert len(text.splitlines()) == 6 + len(tables.MACHINES)
    document, file = tmp_path / "document.md", tmp_path / "layer.json"
    document.write_text("<!-- predict -->\n<!-- end -->\n")
    for last in ({"disturbed": True}, {"threads": 2}):
        file.write_text(json.dumps(record("layer", *results[:2], {**results[2], **last})))
        assert tables.main([str(document), str(file)]) == 0
        assert "TFLOP" not in document.read_text()
    more = result(2, family="layer", size=tables.STEPS[0], of_floor=0.1, experts=8)
    file.write_text(json.dumps(record("layer", more, *results)))
    assert tables.main([str(document), str(file)]) == 0
    assert text in document.read_text()


def test_both_numbers_of_threads_stand_in_one_line(tables: ModuleType) -> None:
    rows = [
        result(threads, rows=rows, seconds=1e-6 * rows * threads) for rows in (1, 8) for threads in (2, 1)
    ]
    lines = tables.kernels(rows).splitlines()[2:]
    assert lines == [
        f"| FP8 packed | 64x64 | {rows} | {rows}.0 | 90 % of 40 GB/s | {2 * rows}.0 | 90 % of 40 GB/s |  |  |"
        for rows in (1, 8)
    ]


def test_layers_say_how_many_experts_they_had(tables: ModuleType) -> None:
    found = result(1, family="layer", size="decode, batch 16", name="window only", experts=96)
    text, empty, *table = tables.layers([found]).splitlines()
    # 96 (1 - (90 / 96)^16) and 384 (1 - (378 / 384)^16)
    assert text == (
        "96 routed experts were in memory, of which a step of batch 16 hits about 62 "
        "(of the release's 384, about 86)."
    )
    assert (empty, len(table)) == ("", 3)
    assert tables.layers([]) == ""


def test_of_what_was_measured_twice_the_last_that_was_not_disturbed_counts(tables: ModuleType) -> None:
    first, second = result(1, seconds=1.0), result(1, seconds=2.0)
    disturbed, other = result(1, seconds=3.0, disturbed=True), result(2, seconds=4.0)
    assert tables.latest([first, other, second, disturbed]) == [second, other]
    assert tables.latest([disturbed, first]) == [first]
    packed, stored = (result(1, layout=layout) for layout in ("packed", "stored"))
    assert tables.latest([first, stored, packed]) == [packed, stored]  # records did not tell packed at first
    named = [result(1, family="peer", peer=name) for name in ("one", "two")]
    assert tables.latest(named) == named
    torch = [result(1, peer=name) for name in (None, "torch")]
    assert tables.latest(torch) == torch[1:]


def test_what_is_replaced_and_what_is_kept_is_told(
    tables: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, file = tmp_path / "document.md", tmp_path / "kernels.json"
    document.write_text(DOCUMENT)
    file.write_text(json.dumps(record("kernels", result(1))))
    assert tables.main([str(document), str(file)]) == 0
    assert capsys.readouterr().out == "replaced: machine, linear\nkept: layer\n"


@pytest.mark.parametrize("change", [{"processor": "another"}, {"instruction_set": "amx"}])
def test_figures_of_another_machine_do_not_stay_beside_new_ones(
    tables: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str]
) -> None:
    document, files = tmp_path / "document.md", [tmp_path / name for name in ("1.json", "2.json")]
    document.write_text(DOCUMENT)
    linear = record("kernels", result(1))
    files[0].write_text(json.dumps(linear))
    assert tables.main([str(document), str(files[0])]) == 0
    before = document.read_text()
    linear["machine"] = {**MACHINE, **change}
    files[1].write_text(json.dumps(linear))
    assert tables.main([str(document), str(files[1])]) == 2
    error = capsys.readouterr().err
    assert next(iter(change.values())) in error
    assert "layer, which no record covers, of a processor: 2 cores, 16 GB" in error
    assert error.count("\n") == 1
    assert document.read_text() == before
    document.write_text(before.replace("kept\n", ""))  # nothing old would stay
    assert tables.main([str(document), str(files[1])]) == 0
    assert tables.main([str(document), str(files[1])]) == 0


def test_a_file_that_is_no_record_is_named(
    tables: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, file = tmp_path / "document.md", tmp_path / "cases.json"
    document.write_text(DOCUMENT)
    file.write_text('{"cases": []}')
    for path, reason in ((file, "the file lacks benchmark"), (tmp_path / "none.json", "No such file")):
        assert tables.main([str(document), str(path)]) == 2
        error = capsys.readouterr().err
        assert str(path) in error
        assert reason in error
        assert error.count("\n") == 1
    assert document.read_text() == DOCUMENT


def test_layers_as_stored_are_left_out(
    tables: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, file = tmp_path / "document.md", tmp_path / "layer.json"
    document.write_text("<!-- layer -->\n<!-- end -->\n")
    old = result(1, family="layer", size="decode", name="of an old record", experts=8)
    packed, stored = ({**old, "name": layout, "layout": layout} for layout in ("packed", "stored"))
    file.write_text(json.dumps(record("layer", old, packed, stored)))
    assert tables.main([str(document), str(file)]) == 0
    assert "left out: results of layers as stored (1)" in capsys.readouterr().out
    assert [line.split(" | ")[1] for line in document.read_text().splitlines()[5:-1]] == [
        "of an old record",
        "packed",
    ]


def test_a_step_that_was_disturbed_is_compared_with_nothing(tables: ModuleType) -> None:
    peer = {"peer": "llama.cpp", "model": "nano", "name": "decode", "tokens": 1, "threads": 2}
    step = {**peer, "step": {"minimum": 0.002}, "read": None, "flops": 1e6, "ratio": None}
    assert tables.peers([step]).splitlines()[-1].endswith("| disturbed |")


def test_records_of_two_machines_are_refused(
    tables: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {
        **record("model"),
        "machine": {**MACHINE, "date": "2026-12-01 00:00", "instruction_set": "avx512"},
    }
    with pytest.raises(ValueError, match="instruction_set is avx2 and avx512"):
        tables.machine([record("kernels"), other])
    document, files = tmp_path / "document.md", [tmp_path / name for name in ("1.json", "2.json")]
    for file, content in zip(files, (record("kernels"), other), strict=True):
        file.write_text(json.dumps(content))
    document.write_text(DOCUMENT)
    assert tables.main([str(document), *map(str, files)]) == 2
    assert capsys.readouterr().err.startswith("tables.py: records of different machines")
    assert document.read_text() == DOCUMENT
    later = {**record("kernels"), "machine": {**MACHINE, "date": "2026-12-01 00:00"}}
    busier = {**record("kernels"), "foreign_load": {"cores": 1.5, "of": 2}}
    assert "at most: kernels 1.5." in tables.machine([record("kernels"), busier, record("kernels")])
    assert "2026-11-30 00:00 to 2026-12-01 00:00" in tables.machine([later, record("kernels")])
    assert "unknown" in tables.machine([{**record("kernels"), "foreign_load": None}])
