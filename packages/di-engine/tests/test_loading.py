"""Bad directories: one clear error each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from di_engine import EngineConfig, EngineConfigError, LLMEngine, SamplingParams, load_model
from di_kernels import threads_are_pinned
from di_model.config import ModelConfig
from di_model.packed import WeightLayout, copy_bytes
from di_model.testing import tiny_config, write_checkpoint
from safetensors.torch import load_file, save_file

INDEX = "model.safetensors.index.json"


@pytest.fixture
def broken(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint to damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "broken"))


def shard(directory: Path) -> Path:
    return sorted(directory.glob("*.safetensors"))[0]


def edit_config(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def edit_shard(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Rewrite the first shard and the index with other tensors."""
    tensors = load_file(shard(directory))
    change(tensors)
    save_file(tensors, shard(directory))
    index = json.loads((directory / INDEX).read_text())
    name = shard(directory).name
    others = {tensor: file for tensor, file in index["weight_map"].items() if file != name}
    index["weight_map"] = others | dict.fromkeys(tensors, name)
    (directory / INDEX).write_text(json.dumps(index))


def truncate(directory: Path) -> None:
    data = shard(directory).read_bytes()
    shard(directory).write_bytes(data[: len(data) // 2])


def lie_in_the_header(directory: Path) -> None:
    data = shard(directory).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    victim = next(name for name in header if name != "__metadata__")
    header[victim]["data_offsets"][1] += 1 << 40
    text = json.dumps(header).encode()
    shard(directory).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[min(tensors)]


def add(tensors: dict[str, torch.Tensor]) -> None:
    tensors["layers.77.extra.weight"] = torch.zeros(2)


def widen(tensors: dict[str, torch.Tensor]) -> None:
    name = next(name for name, tensor in tensors.items() if tensor.dtype == torch.bfloat16)
    tensors[name] = tensors[name].to(torch.float32)


@pytest.mark.parametrize(
    ("damage", "error", "says"),
    [
        (lambda path: shutil.rmtree(path), FileNotFoundError, "no checkpoint directory"),
        (lambda path: (path / "config.json").unlink(), FileNotFoundError, "no configuration"),
        (lambda path: (path / "config.json").write_text("{"), ValueError, "JSON"),
        (lambda path: edit_config(path, architectures=["LlamaForCausalLM"]), ValueError, "LlamaForCausalLM"),
        (lambda path: (path / "tokenizer.json").unlink(), FileNotFoundError, "no tokenizer"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), ValueError, "not a tokenizer"),
        (lambda path: (path / INDEX).unlink(), ValueError, INDEX),
        (lambda path: shard(path).unlink(), ValueError, "00001"),
        (truncate, ValueError, "00001"),
        (lie_in_the_header, ValueError, "00001"),
        (lambda path: edit_shard(path, drop), ValueError, "missing"),
        (lambda path: edit_shard(path, add), ValueError, "layers.77.extra.weight"),
        (lambda path: edit_shard(path, widen), ValueError, "F32"),
    ],
)
def test_a_bad_directory_is_named(
    broken: Path, damage: Callable[[Path], None], error: type[Exception], says: str
) -> None:
    load_model(EngineConfig(model=broken, max_num_seqs=2))
    damage(broken)
    with pytest.raises(error, match=says):
        load_model(EngineConfig(model=broken, max_num_seqs=2))


def test_a_setting_that_does_not_fit_is_found_before_the_weights(broken: Path) -> None:
    truncate(broken)
    with pytest.raises(EngineConfigError, match="max_model_len"):
        load_model(EngineConfig(model=broken, max_model_len=1 << 20))


def test_a_packed_copy_in_memory_is_part_of_the_plan(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = copy_bytes(ModelConfig.from_file(checkpoint), WeightLayout.PACKED)
    blocks = {}
    for layout, extra in ((WeightLayout.STORED, 0), (WeightLayout.PACKED, 0), (WeightLayout.PACKED, size)):
        monkeypatch.setattr("di_engine.loading.available_memory", lambda extra=extra: 2 * size + extra)
        config = EngineConfig(model=checkpoint, max_num_seqs=2, block_size=2, weight_layout=layout)
        blocks[layout, extra] = load_model(config).capacity.num_blocks
    assert (
        blocks[WeightLayout.PACKED, 0] < blocks[WeightLayout.STORED, 0] == blocks[WeightLayout.PACKED, size]
    )
    monkeypatch.setattr("di_engine.loading.available_memory", lambda: size - 1)
    with pytest.raises(EngineConfigError, match="weight_layout"):
        load_model(EngineConfig(model=checkpoint, max_num_seqs=2, weight_layout=WeightLayout.PACKED))


def test_the_tokenizer_may_lie_elsewhere(broken: Path, tmp_path: Path) -> None:
    elsewhere = shutil.move(broken / "tokenizer.json", tmp_path / "tokenizer.json")
    loaded = load_model(EngineConfig(model=broken, tokenizer=elsewhere, max_num_seqs=2))
    assert loaded.tokenizer.encode("Hello")


def test_the_draft_model_may_stay_out(checkpoint: Path, drain: Any) -> None:
    config = EngineConfig(model=checkpoint, load_draft=False, max_num_seqs=2)
    small, large = load_model(config), load_model(EngineConfig(model=checkpoint, max_num_seqs=2))
    assert small.capacity.layout.slot_bytes < large.capacity.layout.slot_bytes
    greedy = {"temperature": 0, "max_tokens": 6, "logprobs": 0, "ignore_eos": True}
    tokens = []
    for loaded in (small, large):
        with LLMEngine(config, loaded=loaded) as engine:
            engine.add_request("a", [5, 6, 7], SamplingParams(**greedy))
            tokens.append(drain(engine)["a"])
    assert tokens[0] == tokens[1]
    assert [output.error for output in tokens[0]] == [None] * 6


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no processor affinity")
def test_threads_are_pinned_until_the_engine_that_pinned_them_is_closed(checkpoint: Path, drain: Any) -> None:
    allowed = os.sched_getaffinity(0)
    config = EngineConfig(model=checkpoint, max_num_seqs=2, pin_threads=True)
    with LLMEngine(config) as engine:
        engine.add_request("a", [5, 6, 7], SamplingParams(max_tokens=2))
        drain(engine)
        assert threads_are_pinned()
        assert os.sched_getaffinity(0) == {min(allowed)}
        with LLMEngine(config):
            pass
        assert threads_are_pinned()  # by the first engine
    assert not threads_are_pinned()
    assert os.sched_getaffinity(0) == allowed


def test_an_engine_that_does_not_start_leaves_no_thread_pinned(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LLMEngine(EngineConfig(model=tmp_path / "none", pin_threads=True))
    assert not threads_are_pinned()


def test_nan_weights_end_requests_with_an_error(tmp_path: Path, drain: Any) -> None:
    directory = write_checkpoint(tmp_path / "nan", tiny_config(quantized=False), num_shards=0)
    tensors = load_file(directory / "model.safetensors")
    tensors["norm.weight"] = torch.full_like(tensors["norm.weight"], float("nan"))
    save_file(tensors, directory / "model.safetensors")
    with LLMEngine(EngineConfig(model=directory, max_num_seqs=2)) as engine:
        engine.add_request("a", [5, 6, 7], SamplingParams())
        (output,) = drain(engine)["a"]
        assert output.finish_reason == "error"
        assert "not finite" in output.error
        assert engine.stats().counters.nonfinite_sequences == 1


PINNED = """
import os, sys
from pathlib import Path
from di_engine import EngineConfig, LLMEngine, SamplingParams
from di_kernels import set_num_threads

def migrations():  # of the threads that may run on one processor only
    found = {}
    for task in Path("/proc/self/task").iterdir():
        if len(os.sched_getaffinity(int(task.name))) == 1:
            lines = (task / "sched").read_text().splitlines()
            found[task.name] = next(line.split()[-1] for line in lines if line.startswith("se.nr_migrations"))
    return found

allowed = os.sched_getaffinity(0)
asynchronous = sys.argv[2] == "True"
settings = {"num_threads": 2, "pin_threads": True, "async_scheduling": asynchronous, "load_draft": False}
with LLMEngine(EngineConfig(model=Path(sys.argv[1]), max_num_seqs=2, **settings)) as engine:
    set_num_threads(2, work_per_thread=1)
    seen = []
    for name in "abc":
        engine.add_request(name, list(range(5, 45)), SamplingParams(max_tokens=4, ignore_eos=True))
        while engine.has_unfinished():
            engine.step()
        seen.append(migrations())
    assert os.sched_getaffinity(0) == (allowed if asynchronous else {min(allowed)})
assert os.sched_getaffinity(0) == allowed
assert len(seen[0]) > 1 and seen[0] == seen[1] == seen[2], seen
"""


@pytest.mark.skipif(
    not Path("/proc/self/sched").exists() or len(os.sched_getaffinity(0)) < 2,
    reason="the system does not tell how often threads move, or there is one processor",
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_pinned_threads_never_move(checkpoint: Path, asynchronous: bool) -> None:
    """Also not in loops inside a part of another one, which the thread of the part computes where it is."""
    command = [sys.executable, "-c", PINNED, str(checkpoint), str(asynchronous)]
    subprocess.run(command, check=True, timeout=120)
