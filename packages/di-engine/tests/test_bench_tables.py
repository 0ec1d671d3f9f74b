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
    assert "kernels 0.2, model 0.2" in text
    assert "old" not in text
    assert "kept" in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert tables.main([str(document), str(first), str(second)]) == 0
    assert document.read_text() == text


def test_predictions_need_all_three_steps(tables: ModuleType) -> None:
    steps = ("decode, batch 1", "decode, batch 16", "prefill of 512")
    shares = dict(zip(steps, (0.8, 0.6, 0.7), strict=True))
    results = [result(1, family="layer", size=step, of_floor=share) for step, share in shares.items()]
    text = tables.predictions([*results, result(2, family="layer", size=steps[0], of_floor=0.1)])
    assert "80 % at batch 1, 60 % at batch 16, 70 % in prefill" in text
    assert "500 GFLOP/s a core" in text
    assert len(text.splitlines()) == 6 + len(tables.MACHINES)
