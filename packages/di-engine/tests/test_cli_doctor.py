"""``di doctor`` and the facts behind it."""

import json
import os
import subprocess
import sys

import torch
from di_engine.cli import run
from di_engine.doctor import Backend, Diagnosis, diagnose
from di_kernels import num_threads


def backend(diagnosis: Diagnosis, name: str) -> Backend:
    return next(found for found in diagnosis.backends if found.name == name)


def test_facts_agree_with_the_interpreter():
    diagnosis = diagnose()
    assert diagnosis.cpu.cores == os.cpu_count()
    assert diagnosis.torch.version == torch.__version__
    assert diagnosis.threads.kernel_threads == num_threads()
    assert diagnosis.memory.total is None or 0 < diagnosis.memory.available <= diagnosis.memory.total


def test_every_operation_has_a_reference_and_a_cpu_kernel():
    diagnosis = diagnose()
    reference, cpu = backend(diagnosis, "reference"), backend(diagnosis, "cpu")
    assert reference.missing == ()
    assert {"linear.linear", "attention.sparse_attention", "moe.experts"} <= set(cpu.available)
    assert cpu.missing == ()
    assert diagnosis.healthy


def test_backends_without_kernels_say_why():
    for name in ("cuda", "asc"):
        found = backend(diagnose(), name)
        assert found.available == ()
        assert "no kernels for it" in found.reason


def test_json_and_text(capsys):
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {b["name"] for b in found["backends"]} == {"reference", "cpu", "cuda", "asc"}
    assert all(module["problem"] is None for module in found["native_modules"])
    assert run(["doctor"]) == 0
    assert "backend cpu" in capsys.readouterr().out


def test_help_needs_no_torch():
    """Starting the command line is fast because heavy modules wait for the command that needs them."""
    code = "import sys; from di_engine.cli import run; run(['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0
