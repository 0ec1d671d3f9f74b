"""``di verify golden`` on files written from the reference model, on damaged ones, and on the project's own."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from di_engine.cli import run
from di_engine.verify import Finding, FindingKind, GoldenVerification, Verdict
from di_engine.verify.cached import CachedRunner
from di_engine.verify.damage import damage
from di_engine.verify.golden import UNQUANTIZED_SUFFIX
from di_engine.verify.settings import kernel_settings
from di_engine.verify.unquantized import unquantized
from di_kernels.ops.linear import WeightFormat
from di_model.checkpoint import load_checkpoint
from di_model.engram_tables import derive_engram
from di_model.golden import ReferenceRunner
from di_model.model import Model
from di_model.numerics import Numerics
from di_model.packed import WeightLayout
from di_model.reference import ReferenceModel
from di_model.testing import tiny_config, write_checkpoint

PROMPT = torch.tensor(
    [0, 17, 99, 40, 41, 42, 43, 44, 45, 200, 201, 3, 4, 5, 150, 151, 152, 60], dtype=torch.int32
)


def shared(*parts: str) -> Path:
    """A path in the project's shared folder, which lies next to the repository; skips the test without it."""
    for parent in Path(__file__).resolve().parents:
        if (parent / "shared" / "golden").is_dir():
            return parent.joinpath("shared", *parts)
    pytest.skip("no shared folder next to the repository")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory, checkpoint):
    """A folder of checkpoints with one preset, ``tiny``."""
    folder = tmp_path_factory.mktemp("checkpoints")
    shutil.copytree(checkpoint, folder / "tiny")
    return folder


@pytest.fixture(scope="module")
def golden(tmp_path_factory, checkpoints):
    """Golden logits and decoding of the preset, from the reference model."""
    folder = tmp_path_factory.mktemp("golden")
    opened = load_checkpoint(checkpoints / "tiny")
    engram = derive_engram(opened.config, opened.path)
    runner = ReferenceRunner(ReferenceModel(opened.config, opened.weights, engram, Numerics.FLOAT32))
    with kernel_settings(num_threads=1):
        np.savez(folder / "tiny_fp32_logits.npz", **logits_arrays(runner))
        np.savez(folder / "tiny_fp32_decode.npz", **decode_arrays(runner))
    return folder


def logits_arrays(runner):
    output = runner.forward(PROMPT)
    lengths = np.array([1, 9, 10])
    return {
        "mine.ids": PROMPT.numpy(),
        "mine.logits": output.logits.numpy(),
        "mine.main_hidden_last": output.features[-1].numpy(),
        "mine.prefill_lengths": lengths,
        "mine.prefill_last_logits": output.logits[lengths - 1].numpy(),
    }


def decode_arrays(runner):
    tokens = PROMPT
    for _ in range(4):
        greedy = runner.forward(tokens).logits[-1:].argmax(1).to(torch.int32)
        tokens = torch.cat([tokens, greedy])
    continuation = tokens[len(PROMPT) :]
    decoded = runner.decode(PROMPT, continuation, 5)
    drafts = torch.stack([draft.tokens for draft in decoded.drafts])
    return {
        "18.prompt": PROMPT.numpy(),
        "18.greedy": continuation.numpy(),
        "18.logits": decoded.logits.numpy(),
        "18.draft_tokens": torch.cat([continuation[1:, None], drafts], dim=1).numpy(),
        "18.draft_confidence": torch.stack([draft.confidence for draft in decoded.drafts]).numpy(),
    }


def verify(golden, checkpoints, tokenizer=None, chunks=(None, 7)):
    return list(GoldenVerification(golden, checkpoints, tokenizer, chunks=chunks).run())


def misses(items):
    return [
        item
        for item in items
        if (isinstance(item, Verdict) and not item.result.passed)
        or (isinstance(item, Finding) and item.kind is FindingKind.MISSED)
    ]


def test_reference_and_cached_path_meet_the_values(golden, checkpoints):
    items = verify(golden, checkpoints)
    assert misses(items) == []
    subjects = {item.subject for item in items}
    assert {"reference", "cached, whole prompt", "cached, chunks of 7"} <= subjects
    assert {"reference, unquantized", "cached, whole prompt, unquantized"} <= subjects
    cases = {item.result.case for item in items if item.subject == "cached, chunks of 7"}
    assert {"mine logits", "mine cut to 3 lengths", "prompt of 18 draft tokens"} <= cases


@pytest.mark.parametrize("layout", WeightLayout)
def test_the_cached_path_meets_the_values_in_every_layout(golden, checkpoints, layout, monkeypatch):
    packed = set()

    def runner(model, chunk):
        packed.add(model.weights.layers[0].attn.wq_a.is_packed)
        return CachedRunner(model, chunk)

    monkeypatch.setattr("di_engine.verify.golden.CachedRunner", runner)
    items = list(GoldenVerification(golden, checkpoints, None, chunks=(7,), weight_layout=layout).run())
    assert misses(items) == []
    assert packed == {layout is not WeightLayout.STORED}


@pytest.mark.parametrize(
    ("file", "array", "case"),
    [
        ("tiny_fp32_logits.npz", "mine.logits", "mine logits"),
        ("tiny_fp32_logits.npz", "mine.prefill_last_logits", "mine cut to 3 lengths"),
        ("tiny_fp32_logits.npz", "mine.main_hidden_last", "mine draft features"),
        ("tiny_fp32_decode.npz", "18.draft_tokens", "prompt of 18 draft tokens"),
        ("tiny_fp32_decode.npz", "18.draft_confidence", "prompt of 18 draft confidence"),
    ],
)
def test_one_changed_value_is_a_miss_of_both_paths(golden, checkpoints, tmp_path, file, array, case):
    arrays = dict(np.load(golden / file))
    arrays[array] = arrays[array].copy()
    arrays[array].flat[-1] += 1e-3 if arrays[array].dtype == np.float32 else 1
    np.savez(tmp_path / file, **arrays)
    missed = misses(verify(tmp_path, checkpoints, chunks=(7,)))
    assert {item.result.case for item in missed} == {case}
    assert {"reference", "cached, chunks of 7"} <= {item.subject for item in missed}


def test_command_prints_a_line_a_case_and_fails_on_a_miss(capsys, golden, checkpoints, tmp_path):
    shutil.copytree(golden, tmp_path, dirs_exist_ok=True)
    (tmp_path / "notes.md").write_text("not golden", encoding="utf-8")
    (tmp_path / "tiny_fp32_logits.npz").unlink()
    options = ["verify", "golden", str(tmp_path), "--checkpoints", str(checkpoints)]
    assert run(options) == 0
    out = capsys.readouterr().out
    assert "ok   tiny_fp32_decode.npz: prompt of 18 logits (cached, chunks of 64): max error " in out
    assert "NOT UNDERSTOOD notes.md" in out
    assert " 0 misses, 1 files not understood" in out
    (tmp_path / "absent_fp32_logits.npz").write_bytes((golden / "tiny_fp32_logits.npz").read_bytes())
    (tmp_path / "tokenizer_cases.json").write_text('{"cases": []}', encoding="utf-8")
    (tmp_path / "ops.npz").write_bytes(b"no archive")
    assert run([*options, "--json"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["file"] for line in lines if line.get("finding") == "missed"} == {
        "absent_fp32_logits.npz",
        "tokenizer_cases.json",
        "ops.npz",
    }
    assert lines[-1]["misses"] == 3


def whole(path):
    np.savez(path, first=np.arange(1000), second=np.arange(9))
    return path.read_bytes()


@pytest.mark.parametrize(
    "break_it",
    [
        lambda data: b"",
        lambda data: b"no archive",
        lambda data: data[:-100],
        lambda data: data[:100] + data[300:],
        lambda data: data[:3000] + b"\xff" + data[3001:],
    ],
)
def test_damaged_file_is_called_damaged(checkpoints, tmp_path, break_it):
    path = tmp_path / "tiny_fp32_logits.npz"
    data = whole(path)
    assert damage(path) is None
    path.write_bytes(break_it(data))
    (finding,) = verify(tmp_path, checkpoints)
    assert (finding.kind, finding.file) == (FindingKind.MISSED, path.name)
    assert re.match("damaged: |unreadable: ", finding.reason)
    assert "pickle" not in finding.reason


def test_damaged_cases_of_the_tokenizer_are_called_damaged(checkpoints, tmp_path):
    (tmp_path / "tokenizer_cases.json").write_text('{"cases": [', encoding="utf-8")
    (tmp_path / "ops.npz").mkdir()
    reasons = {finding.file: finding.reason for finding in verify(tmp_path, checkpoints)}
    assert reasons["tokenizer_cases.json"].startswith("damaged: not JSON (Expecting value")
    assert reasons["ops.npz"] == "not a regular file"


def test_directory_without_golden_files_is_a_miss(checkpoints, tmp_path):
    (finding,) = verify(tmp_path, checkpoints)
    assert (finding.kind, finding.file) == (FindingKind.MISSED, str(tmp_path))


@pytest.mark.parametrize("absent", ["golden", "checkpoints"])
def test_absent_directories_are_named(capsys, golden, checkpoints, tmp_path, absent):
    paths = {"golden": golden, "checkpoints": checkpoints} | {absent: tmp_path / "absent"}
    assert run(["verify", "golden", str(paths["golden"]), "--checkpoints", str(paths["checkpoints"])]) == 2
    assert capsys.readouterr().err.startswith(f"di: {absent}")


def test_unquantized_form_has_the_numbers_of_a_bf16_checkpoint(checkpoints, tmp_path):
    plain = load_checkpoint(write_checkpoint(tmp_path, tiny_config(quantized=False)))
    expanded = unquantized(load_checkpoint(checkpoints / "tiny"))
    assert expanded.config.quantization is None
    for ours, theirs in zip(expanded.weights.layers, plain.weights.layers, strict=True):
        for mine, stored in (
            (ours.attn.wq_a, theirs.attn.wq_a),
            (ours.moe.experts.w2[1], theirs.moe.experts.w2[1]),
        ):
            assert mine.format is WeightFormat.BFLOAT16
            assert torch.equal(mine.data, stored.data)
        if ours.engram is not None:
            assert torch.equal(ours.engram.table.data, theirs.engram.table.data)


def test_cached_runner_gives_the_same_bits_in_every_schedule(checkpoints):
    opened = load_checkpoint(checkpoints / "tiny")
    engram = derive_engram(opened.config, opened.path)
    model = Model(opened.config, opened.weights, engram, Numerics.RELEASE, 64)
    whole = CachedRunner(model).forward(PROMPT)
    for chunk in (1, 2, 7):
        cut = CachedRunner(model, chunk).forward(PROMPT)
        assert torch.equal(cut.logits, whole.logits)
        assert torch.equal(cut.features, whole.features)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The project's golden values of the smallest preset, its checkpoint and the released tokenizer."""
    folder = tmp_path_factory.mktemp("released")
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_bytes(gzip.decompress(shared("data", "deepseek-v4.1", "tokenizer.json.gz").read_bytes()))
    for name, option in (("micro", []), (f"micro{UNQUANTIZED_SUFFIX}", ["--unquantized"])):
        command = [
            sys.executable,
            shared("tools", "make_tiny.py"),
            "--preset",
            "micro",
            "--tokenizer",
            tokenizer,
        ]
        subprocess.run([*command, "--out", folder / name, *option], check=True, capture_output=True)
    golden = folder / "golden"
    golden.mkdir()
    for path in shared("golden").iterdir():
        if not path.name.startswith("w128"):
            (golden / path.name).symlink_to(path)
    return golden, folder, tokenizer


def test_released_values(released):
    items = verify(*released, chunks=(7,))
    assert misses(items) == []
    assert {item.file for item in items if isinstance(item, Finding)} == {"README.md", "chat_cases.json"}
    files = {item.result.file for item in items if isinstance(item, Verdict)}
    assert files == {path.name for path in released[0].iterdir()} - {"README.md", "chat_cases.json"}
