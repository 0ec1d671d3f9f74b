"""``di doctor`` and the facts behind it."""

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from importlib import metadata

import pytest
import torch
from di_engine.benchmark.machine import this_machine
from di_engine.cli import run
from di_engine.doctor import Backend, Diagnosis, Kernels, diagnose
from di_engine.processors import first_facts, processor_name
from di_engine.versions import installed_versions
from di_kernels import instruction_set, instruction_sets, num_threads


def backend(diagnosis: Diagnosis, name: str) -> Backend:
    return next(found for found in diagnosis.backends if found.name == name)


def test_facts_agree_with_the_interpreter():
    diagnosis = diagnose()
    assert diagnosis.cpu.cores == os.cpu_count()
    assert diagnosis.torch.version == torch.__version__
    assert diagnosis.kernels == Kernels(num_threads(), instruction_set(), instruction_sets())
    assert diagnosis.memory.total is None or 0 < diagnosis.memory.available <= diagnosis.memory.total


def test_a_record_of_a_benchmark_tells_the_same_machine():
    diagnosis, machine = diagnose(), this_machine()
    assert machine.processor.startswith(f"{diagnosis.cpu.model or platform.machine()}, family ")
    assert machine.cores == diagnosis.cpu.cores
    assert machine.memory == (diagnosis.memory.total or 0)


def test_the_first_processor_stands_for_all(monkeypatch):
    text = "processor\t: 0\nmodel name\t: One: of two\n\nprocessor\t: 1\nmodel name\t: Other\n"
    assert first_facts(text) == {"processor": "0", "model name": "One: of two"}
    monkeypatch.setattr("di_engine.processors.processor_facts", lambda: {})
    assert processor_name() == platform.processor()


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


@pytest.mark.parametrize(
    ("flags", "sets", "refused"),
    [
        (("amx_tile", "amx_bf16"), ("portable", "avx512bf16"), True),
        (("amx_tile", "amx_bf16"), ("portable", "avx512bf16", "amx"), False),
        (("amx_tile", "amx_bf16"), ("portable", "avx2"), False),  # lacks what the other loops of amx need
        (("amx_tile",), ("portable", "avx512bf16"), False),
    ],
)
def test_tiles_that_the_system_refuses_are_told(capsys, monkeypatch, flags, sets, refused):
    found = diagnose()
    found = replace(found, cpu=replace(found.cpu, instruction_sets=flags), kernels=Kernels(2, sets[-1], sets))
    monkeypatch.setattr("di_engine.doctor.diagnose", lambda: found)
    assert run(["doctor"]) == 0
    assert ("has AMX, but the system does not let" in " ".join(capsys.readouterr().out.split())) == refused


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["--version"]])
def test_help_needs_no_torch(arguments):
    """Starting the command line is fast because heavy modules wait for the command that needs them."""
    code = f"import sys; from di_engine.cli import run; run({arguments}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


def test_module_runs_as_the_command_and_shows_versions():
    command = [sys.executable, "-m", "di_engine", "--version"]
    shown = subprocess.run(
        command, capture_output=True, timeout=60, text=True, check=True
    ).stdout.splitlines()
    packages = ("di-engine", "di-spec", "di-model", "di-cache", "di-scheduler", "di-kernels", "torch")
    assert {f"{name} {metadata.version(name)}" for name in packages} <= set(shown)
    assert f"Python {platform.python_version()}" in shown
    assert {str(version) for version in diagnose().versions} == set(shown)


def test_package_that_is_not_installed_has_no_version(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert str(installed_versions()[0]) == "di-engine (not installed)"
