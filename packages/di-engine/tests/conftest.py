"""Tiny checkpoints, written once a session, and engines that are closed when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import di_kernels
import pytest
import torch
from di_engine import LLMEngine
from di_engine.config import EngineConfig
from di_engine.engine import ModelRunner
from di_engine.testing import NextLogits, scripted_model
from di_model.testing import tiny_config, write_checkpoint
from di_spec import Drafter
from hypothesis import HealthCheck, settings

# A busy machine is no defect.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

MakeEngine = Callable[..., LLMEngine]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantized checkpoint with every layer role of the release."""
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), tiny_config())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny steps do not pay for more threads; tests of threads ask for them. Puts the process's counts back."""
    native, library = di_kernels.num_threads(), torch.get_num_threads()
    instructions = di_kernels.instruction_set()
    di_kernels.set_num_threads(1)
    torch.set_num_threads(1)
    yield
    di_kernels.set_num_threads(native)
    torch.set_num_threads(library)
    di_kernels.set_instruction_set(instructions)


@pytest.fixture
def async_scheduling() -> bool:
    """What engines are made with unless a test says otherwise; modules may run their tests both ways."""
    return False


@pytest.fixture
def make_engine(checkpoint: Path, async_scheduling: bool) -> Iterator[MakeEngine]:
    """Engines of the tiny checkpoint: ``make_engine(**settings)``."""
    engines: list[LLMEngine] = []

    def make(**settings: Any) -> LLMEngine:
        defaults = {"model": checkpoint, "max_num_seqs": 8, "async_scheduling": async_scheduling}
        engines.append(LLMEngine(EngineConfig.from_dict({**defaults, **settings})))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def make_scripted(async_scheduling: bool) -> Iterator[MakeEngine]:
    """Engines of a scripted model: ``make_scripted(next_logits, **settings)``."""
    engines: list[LLMEngine] = []

    def make(
        next_logits: NextLogits,
        *,
        extra_tokens: tuple[str, ...] = (),
        runner: Any = ModelRunner,
        drafter: Drafter | None = None,
        **settings: Any,
    ) -> LLMEngine:
        defaults = {"model": "scripted", "max_num_seqs": 8, "async_scheduling": async_scheduling}
        config = EngineConfig.from_dict({**defaults, **settings})
        loaded = scripted_model(config, next_logits, extra_tokens=extra_tokens)
        engines.append(LLMEngine(config, loaded=loaded, runner=runner, drafter=drafter))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def drain() -> Callable[[LLMEngine], dict[str, list[Any]]]:
    """Steps an engine until it has nothing left; returns the outputs of each request id in order."""

    def run(engine: LLMEngine, max_steps: int = 2000) -> dict[str, list[Any]]:
        outputs: dict[str, list[Any]] = {}
        for _ in range(max_steps):
            if not engine.has_unfinished():
                return outputs
            for output in engine.step():
                outputs.setdefault(output.request_id, []).append(output)
        raise AssertionError(f"unfinished after {max_steps} steps: {engine.stats()}")

    return run
