"""Which runners compute a step in one native call, and that it changes nothing but time."""

from __future__ import annotations

from pathlib import Path

import pytest
from di_engine import EngineConfig, LLMEngine
from di_engine.loading import LoadedModel, load_model
from di_engine.outputs import RequestOutput
from di_engine.runner import ModelRunner
from di_model.model import Model
from di_model.native import NativeModel
from di_spec import SamplingParams


@pytest.fixture(scope="module")
def calls(monkeypatch_module: pytest.MonkeyPatch) -> list[str]:
    """What computed each step."""
    seen: list[str] = []
    for kind, cls in (("native", NativeModel), ("composed", Model)):
        forward = cls.forward

        def counted(self, *args, _forward=forward, _kind=kind, **kwargs):
            seen.append(_kind)
            return _forward(self, *args, **kwargs)

        monkeypatch_module.setattr(cls, "forward", counted)
    return seen


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def outputs(checkpoint: Path, *, native_plan: bool) -> list[RequestOutput]:
    config = EngineConfig(model=checkpoint, max_num_seqs=2, native_plan=native_plan)
    found: list[RequestOutput] = []
    with LLMEngine(config) as engine:
        params = SamplingParams(max_tokens=6, seed=3, logprobs=2, prompt_logprobs=1, ignore_eos=True)
        for name in ("a", "b", "c"):
            engine.add_request(name, [5, 6, 7, *name.encode()], params)
        while engine.has_unfinished():
            found += engine.step()
    return found


def test_outputs_are_those_of_the_composed_model(checkpoint: Path, calls: list[str]) -> None:
    native = outputs(checkpoint, native_plan=True)
    assert set(calls) == {"native"}
    calls.clear()
    assert outputs(checkpoint, native_plan=False) == native
    assert set(calls) == {"composed"}


def test_a_model_of_another_class_is_composed(checkpoint: Path, calls: list[str]) -> None:
    class Other(Model):
        """May compute anything."""

    loaded = load_model(EngineConfig(model=checkpoint, max_num_seqs=1))
    model = loaded.model
    assert isinstance(model, Model)
    other = Other.__new__(Other)
    other.__dict__.update(model.__dict__)
    runner = ModelRunner(LoadedModel(loaded.config, loaded.tokenizer, other, loaded.capacity))
    calls.clear()
    with LLMEngine(
        EngineConfig(model=checkpoint, max_num_seqs=1), loaded=loaded, runner=lambda *_: runner
    ) as engine:
        engine.add_request("a", [5, 6, 7], SamplingParams(max_tokens=2))
        while engine.has_unfinished():
            engine.step()
    assert set(calls) == {"composed"}
