"""``di inspect`` on a bare configuration, on a whole checkpoint, on a damaged one, and on the released model."""

import gzip
import json
import re
from pathlib import Path

import pytest
from di_engine.cli import run
from di_model.testing import tiny_config, write_checkpoint


def shared(*parts: str) -> Path:
    """A path in the project's shared folder, which lies next to the repository; skips the test without it."""
    for parent in Path(__file__).resolve().parents:
        if (parent / "shared" / "golden").is_dir():
            return parent.joinpath("shared", *parts)
    pytest.skip("no shared folder next to the repository")


def inspect_json(capsys, *arguments):
    assert run(["inspect", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_released_configuration_gives_the_known_totals(capsys):
    found = inspect_json(capsys, shared("data", "deepseek-v4.1", "config.json"))
    assert (found["total"]["tensors"], found["total"]["nbytes"]) == (96_085, 510_286_023_000)
    cache = found["cache"]
    assert (cache["block_bytes"], cache["slot_bytes"], cache["stored_bytes"]) == (
        114_048,
        3_128_928,
        1_415_040,
    )
    assert found["coverage"] is None
    assert sum(part["nbytes"] for part in found["parts"]) == found["total"]["nbytes"]
    assert len(found["layers"]) == 43
    assert "candidate source" in found["layers"][20]["roles"]


def test_released_listing_is_covered(capsys):
    data = shared("data", "deepseek-v4.1")
    found = inspect_json(capsys, data / "config.json", "--tensors", data / "tensors.tsv.gz")
    assert (found["coverage"]["tensors"], found["coverage"]["nbytes"]) == (96_085, 510_286_023_000)


def test_listing_that_lacks_a_tensor_is_a_failure(capsys, tmp_path):
    data = shared("data", "deepseek-v4.1")
    rows = gzip.decompress((data / "tensors.tsv.gz").read_bytes()).decode().splitlines(keepends=True)
    dropped = next(i for i, row in enumerate(rows) if row.startswith("layers.3.attn.wkv.weight"))
    listing = tmp_path / "tensors.tsv"
    listing.write_text("".join(rows[:dropped] + rows[dropped + 1 :]), encoding="utf-8")
    assert run(["inspect", str(data / "config.json"), "--tensors", str(listing)]) == 1
    assert "missing tensor (1): layers.3.attn.wkv.weight" in capsys.readouterr().err


def test_checkpoint_directory_is_checked_and_its_bytes_are_those_on_disk(capsys, tmp_path):
    write_checkpoint(tmp_path)
    found = inspect_json(capsys, tmp_path)
    shards = list(tmp_path.glob("*.safetensors"))
    data_bytes = sum(s.stat().st_size - 8 - int.from_bytes(s.read_bytes()[:8], "little") for s in shards)
    assert found["coverage"]["nbytes"] == found["total"]["nbytes"] == data_bytes
    assert found["coverage"]["shards"] == len(shards)


def test_damaged_checkpoint_names_the_shard(capsys, tmp_path):
    write_checkpoint(tmp_path)
    shard = sorted(tmp_path.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-100])
    assert run(["inspect", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert shard.name in captured.err
    assert "truncated" in captured.err
    assert captured.out == ""


def test_missing_shard_is_no_wall_of_names(capsys, tmp_path):
    write_checkpoint(tmp_path)
    shard = sorted(tmp_path.glob("*.safetensors"))[0]
    shard.unlink()
    assert run(["inspect", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert re.search(
        rf"missing shard \(1\): {shard.name}\n  missing tensor \((\d+)\): \1 in {shard.name}\n$", err
    )


def test_memory_grows_by_blocks(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tiny_config()), encoding="utf-8")
    found = inspect_json(capsys, path, "--tokens", 128, "--tokens", 129)
    one, two = found["memory"]
    assert (one["blocks"], two["blocks"]) == (1, 2)
    assert two["total_bytes"] - one["total_bytes"] == found["cache"]["block_bytes"]


def test_text_output_has_the_same_totals(capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tiny_config()), encoding="utf-8")
    total = inspect_json(capsys, path)["total"]
    assert run(["inspect", str(path)]) == 0
    assert f"{total['tensors']:,} tensors, {total['nbytes']:,} bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["missing"], 2, "no model at missing"),
        (["org/name"], 2, "hf download org/name --local-dir name"),
        (
            ["org/config.json"],
            2,
            "at org/config.json: a model is a checkpoint directory here or its config.json or",
        ),
        (["README.md"], 1, "README.md is not JSON: Expecting value"),
        ([".", "--tensors", "absent.tsv"], 2, "absent.tsv"),
        ([".", "--numerics", "int4"], 2, "--numerics: got 'int4', allowed: release or float32"),
        ([".", "--block-size", "7"], 2, "--block-size is 7"),
        ([".", "--tokens", "-3"], 2, "--tokens is -3"),
        ([".", "--colour"], 2, "--colour"),
        ([], 2, "Missing argument"),
    ],
)
def test_bad_arguments_give_one_line(capsys, tmp_path, monkeypatch, arguments, exit_code, message):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config()), encoding="utf-8")
    (tmp_path / "README.md").write_text("# A model", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert run(["inspect", *arguments]) == exit_code
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("di: ")
    assert err.count("\n") == 1
    assert ("hf download" in err) == (arguments == ["org/name"])


def test_another_model_is_told_as_such(capsys, tmp_path):
    path = tmp_path / "config.json"
    for raw in ({**tiny_config(), "architectures": ["LlamaForCausalLM"]}, {"model_type": "llama"}):
        path.write_text(json.dumps(raw), encoding="utf-8")
        assert run(["inspect", str(path)]) == 1
        err = capsys.readouterr().err
        assert err.startswith("di: not a DeepSeek-V4.1 model: ")
        assert "lama" in err
        assert "required key" not in err
