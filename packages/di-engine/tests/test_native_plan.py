"""Which runners compute a step in one native call, and that it changes nothing but time."""

from __future__ import annotations

from dataclasses import replace
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
    for kind, cls, name in (
        ("native", NativeModel, "forward"),
        ("drawn", NativeModel, "draw"),
        ("composed", Model, "forward"),
    ):
        method = getattr(cls, name)

        def counted(self, *args, _method=method, _kind=kind, **kwargs):
            seen.append(_kind)
            return _method(self, *args, **kwargs)

        monkeypatch_module.setattr(cls, name, counted)
    return seen


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


DESCRIBED = SamplingParams(max_tokens=6, seed=3, logprobs=2, prompt_logprobs=1, ignore_eos=True)
PLAIN = SamplingParams(max_tokens=6, seed=3, n=2, top_k=40, ignore_eos=True)
PENALISED = SamplingParams(max_tokens=6, seed=3, frequency_penalty=0.5, ignore_eos=True)


def outputs(
    checkpoint: Path,
    *,
    native_plan: bool,
    loaded: LoadedModel | None = None,
    params: SamplingParams = DESCRIBED,
    **settings: bool,
) -> list[RequestOutput]:
    config = EngineConfig(model=checkpoint, max_num_seqs=2, native_plan=native_plan, **settings)
    found: list[RequestOutput] = []
    with LLMEngine(config, loaded=loaded) as engine:
        for name in ("a", "b", "c"):
            engine.add_request(name, [5, 6, 7, *name.encode()], params)
        while engine.has_unfinished():
            found += engine.step()
    return found


def by_choice(found: list[RequestOutput]) -> dict[tuple[str, int], list[RequestOutput]]:
    """The outputs of each choice, in order."""
    return {
        key: [each for each in found if (each.request_id, each.index) == key]
        for key in {(each.request_id, each.index) for each in found}
    }


def test_outputs_are_those_of_the_composed_model(checkpoint: Path, calls: list[str]) -> None:
    native = outputs(checkpoint, native_plan=True)
    assert set(calls) == {"native"}
    calls.clear()
    assert outputs(checkpoint, native_plan=False) == native
    assert set(calls) == {"composed"}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_plain_draws_are_made_in_the_call_that_computes_the_rows(
    checkpoint: Path, calls: list[str], asynchronous: bool
) -> None:
    calls.clear()
    native = outputs(checkpoint, native_plan=True, params=PLAIN, async_scheduling=asynchronous)
    assert set(calls) == {"native", "drawn"}  # prompts, and what follows them
    assert calls.count("drawn") > calls.count("native")
    calls.clear()
    assert outputs(checkpoint, native_plan=False, params=PLAIN) == native
    assert set(calls) == {"composed"}
    calls.clear()
    assert outputs(checkpoint, native_plan=True, params=PENALISED)
    assert set(calls) == {"native"}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_draws_from_logits_that_are_not_finite_fail_alone(checkpoint: Path, asynchronous: bool) -> None:
    """Nothing follows the first token that the first choice generates; choices that do not meet it go on."""
    clean = by_choice(outputs(checkpoint, native_plan=True, params=PLAIN))
    poison = clean["a", 0][0].token_ids[0]
    loaded = load_model(EngineConfig(model=checkpoint, max_num_seqs=2))
    assert isinstance(loaded.model, Model)
    embed = loaded.model.weights.embed.clone()
    embed[poison, 0] = float("nan")
    loaded.model.weights = replace(loaded.model.weights, embed=embed)
    found, composed = (
        outputs(checkpoint, native_plan=native, loaded=loaded, params=PLAIN, async_scheduling=asynchronous)
        for native in (True, False)
    )
    assert found == composed
    choices = by_choice(found)
    last = choices["a", 0][-1]
    assert (last.token_ids, last.finish_reason) == ((), "error")
    assert "not finite" in (last.error or "")
    spared = [key for key, of in clean.items() if all(poison not in each.token_ids for each in of)]
    assert spared
    for key in spared:
        assert [each.token_ids for each in choices[key]] == [each.token_ids for each in clean[key]]


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
