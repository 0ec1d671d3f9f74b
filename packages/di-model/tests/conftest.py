"""Fixtures of the package's tests: the workspace's shared data where it is present, and small checkpoints."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from di_kernels import num_threads, set_num_threads
from di_model.config import ModelConfig
from di_model.testing import write_checkpoint
from hypothesis import HealthCheck, settings

# A busy machine is no defect.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Products this small only lose time to the threads' barriers, most of all on a busy machine."""
    before = num_threads(), torch.get_num_threads()
    set_num_threads(1)
    torch.set_num_threads(1)
    yield
    set_num_threads(before[0])
    torch.set_num_threads(before[1])


@pytest.fixture(scope="session")
def shared() -> Path:
    """The directory ``shared`` beside the repository."""
    for parent in Path(__file__).resolve().parents:
        if (parent / "shared" / "golden").is_dir():
            return parent / "shared"
    pytest.skip("no directory 'shared' with golden values beside the repository")


@pytest.fixture(scope="session")
def released(shared: Path) -> Path:
    """Metadata of the released model."""
    return shared / "data" / "deepseek-v4.1"


@pytest.fixture(scope="session")
def released_config(released: Path) -> ModelConfig:
    return ModelConfig.from_file(released)


@pytest.fixture(scope="session")
def released_tokenizer(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The released ``tokenizer.json``, unpacked."""
    file = tmp_path_factory.mktemp("released") / "tokenizer.json"
    file.write_bytes(gzip.decompress((released / "tokenizer.json.gz").read_bytes()))
    return file


@pytest.fixture(scope="session")
def make_tiny(
    shared: Path, released_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """Writes a checkpoint preset of the golden values: ``make_tiny("micro", "--unquantized")``."""

    def make(preset: str, *options: str) -> Path:
        out = tmp_path_factory.mktemp(preset)
        script = shared / "tools" / "make_tiny.py"
        command = [
            sys.executable,
            script,
            "--preset",
            preset,
            "--tokenizer",
            released_tokenizer,
            "--out",
            out,
        ]
        subprocess.run([*map(str, command), *options], check=True, capture_output=True, timeout=120)
        return out

    return make


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A small random checkpoint of our own, for tests that damage it."""
    return write_checkpoint(tmp_path / "checkpoint")
