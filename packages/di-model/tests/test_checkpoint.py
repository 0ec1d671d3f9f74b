"""Opening checkpoints: stored form, complete coverage, and one error for everything that is wrong."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from di_kernels.ops.linear import WeightFormat
from di_model.checkpoint import load_checkpoint, plan_checkpoint, read_listing
from di_model.config import ConfigError, ModelConfig
from di_model.plan import ListedTensor
from di_model.problems import SHOWN_PER_KIND, CheckpointError, Problem, ProblemKind
from di_model.tensors import expected_tensors
from di_model.testing import random_tensors, tiny_config, write_checkpoint
from safetensors.torch import load_file, save_file
from torch import Tensor

INDEX = "model.safetensors.index.json"
Header = dict[str, Any]


def shards(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors"))


def split_shard(path: Path) -> tuple[Header, bytes]:
    blob = path.read_bytes()
    length = int.from_bytes(blob[:8], "little")
    header: Header = json.loads(blob[8 : 8 + length])
    return header, blob[8 + length :]


def join_shard(path: Path, header: Header | bytes, data: bytes) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def edit_header(path: Path, edit: Callable[[Header], None]) -> None:
    header, data = split_shard(path)
    edit(header)
    join_shard(path, header, data)


def edit_index(directory: Path, edit: Callable[[dict[str, str]], None]) -> None:
    index = json.loads((directory / INDEX).read_text())
    edit(index["weight_map"])
    (directory / INDEX).write_text(json.dumps(index))


def edit_single(directory: Path, edit: Callable[[dict[str, Tensor]], None]) -> None:
    """Rewrites a checkpoint of one file without index."""
    tensors = load_file(directory / "model.safetensors")
    edit(tensors)
    save_file(tensors, directory / "model.safetensors")


def problems_of(directory: Path, **options: Any) -> list[Problem]:
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(directory, **options)
    assert str(directory) in str(error.value)
    for kind in {problem.kind for problem in error.value.problems}:
        assert kind.value in str(error.value)
    return list(error.value.problems)


def kinds(problems: list[Problem]) -> dict[ProblemKind, list[str]]:
    grouped: dict[ProblemKind, list[str]] = {}
    for problem in problems:
        grouped.setdefault(problem.kind, []).append(problem.subject)
    return grouped


@pytest.fixture
def single(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "single", num_shards=0)


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("options", [{}, {"num_shards": 0}, {"num_shards": 7, "name_prefix": "model."}])
def test_weights_in_their_stored_form(tmp_path: Path, quantized: bool, options: dict[str, Any]) -> None:
    raw = tiny_config(quantized=quantized)
    checkpoint = load_checkpoint(write_checkpoint(tmp_path, raw, seed=3, **options))
    stored = random_tensors(ModelConfig.from_dict(raw), seed=3)
    weights = checkpoint.weights
    assert checkpoint.config == ModelConfig.from_dict(raw)
    assert checkpoint.plan.num_bytes == sum(tensor.nbytes for tensor in stored.values())
    assert torch.equal(weights.embed, stored["embed.weight"])
    assert torch.equal(weights.layers[0].hc_ffn.fn, stored["layers.0.hc_ffn_fn"])
    assert torch.equal(weights.layers[5].attn.sink, stored["layers.5.attn.attn_sink"])
    linear, expert = weights.layers[2].attn.wo_a, weights.layers[2].moe.experts.w2[5]
    table = weights.layers[2].engram
    assert table is not None
    if quantized:
        assert linear.format is WeightFormat.FP8
        assert expert.format is WeightFormat.MXFP4
        for found, name in ((linear, "layers.2.attn.wo_a"), (expert, "layers.2.ffn.experts.5.w2")):
            assert found.scale is not None
            assert torch.equal(found.data, stored[f"{name}.weight"].view(torch.uint8))
            assert torch.equal(found.scale, stored[f"{name}.scale"].view(torch.uint8))
        assert table.table.data.dtype == torch.uint8
        assert table.table.scale is not None
    else:
        assert {linear.format, expert.format} == {WeightFormat.BFLOAT16}
        assert torch.equal(expert.data, stored["layers.2.ffn.experts.5.w2.weight"])
        assert table.table.scale is None


def test_parts_where_the_roles_put_them(checkpoint: Path) -> None:
    opened = load_checkpoint(checkpoint)
    layers, draft = opened.weights.layers, opened.weights.draft
    assert [layer.engram is not None for layer in layers] == [True, False, True, False, False, False]
    compressors = [layer.attn.compressor for layer in layers]
    assert [c is not None for c in compressors] == [False, True, False, True, False, False]
    assert [c.wgate is not None for c in compressors if c is not None] == [True, False]
    indexers = [layer.attn.indexer for layer in layers]
    assert [i is not None for i in indexers] == [False, True, False, True, True, False]
    assert [i.wk is not None for i in indexers if i is not None] == [True, True, False]
    assert draft is not None
    assert len(draft.layers) == 2
    assert draft.main_proj.shape == (64, 128)
    assert draft.confidence.shape == (1, 96)
    assert len(layers[0].moe.experts) == 6
    assert len(draft.layers[0].moe.experts) == 4
    assert "aligner.w1.weight" in opened.weights.vision
    assert "image_newline" in opened.weights.vision


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/maps")
def test_weights_stay_in_the_mapped_files(checkpoint: Path) -> None:
    weights = load_checkpoint(checkpoint).weights
    mapped = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(checkpoint) in line:
            begin, end = line.split()[0].split("-")
            mapped.append(range(int(begin, 16), int(end, 16)))
    assert len(mapped) == 3
    engram = weights.layers[0].engram
    assert engram is not None
    tensors = [weights.embed, weights.layers[4].moe.experts.w1[0].data, engram.table.data]
    assert all(any(tensor.data_ptr() in area for area in mapped) for tensor in tensors)


@pytest.mark.skipif(sys.platform == "win32", reason="needs sparse files")
def test_a_shard_larger_than_memory_is_mapped(tmp_path: Path) -> None:
    """Two Engram tables of 1.1 TB in a file that is all hole: nothing may be charged for them."""
    raw = tiny_config(text={"engram_vocab_size": 1 << 28, "engram_head_dim": 1024})
    header, end = {}, 0
    for spec in expected_tensors(ModelConfig.from_dict(raw)).values():
        offsets = [end, end + spec.nbytes]
        header[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": offsets}
        end += spec.nbytes
    (tmp_path / "config.json").write_text(json.dumps(raw))
    blob = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(blob).to_bytes(8, "little") + blob)
        file.truncate(8 + len(blob) + end)
    engram = load_checkpoint(tmp_path).weights.layers[0].engram
    assert engram is not None
    assert engram.table.data.nbytes > 1 << 40
    assert not engram.table.data[-1].any()


def test_loading_outlives_the_call_and_the_file_name(checkpoint: Path) -> None:
    """Views keep the mapping alive after the shards are closed and unlinked."""
    weights = load_checkpoint(checkpoint).weights
    before = weights.head.data.clone()
    for shard in shards(checkpoint):
        shard.unlink()
    assert torch.equal(weights.head.data, before)


def test_tensors_at_odd_offsets_are_readable_by_native_code(single: Path) -> None:
    """One byte in front shifts every tensor; values survive and addresses are aligned again."""
    header, data = split_shard(single / "model.safetensors")
    for entry in header.values():
        entry["data_offsets"] = [offset + 1 for offset in entry["data_offsets"]]
    header["mtp.0.embed.weight"] = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    join_shard(single / "model.safetensors", header, b"\0" + data)
    weights = load_checkpoint(single).weights
    stored = random_tensors(ModelConfig.from_dict(tiny_config()))
    for tensor, name in (
        (weights.embed, "embed.weight"),
        (weights.layers[1].hc_attn.fn, "layers.1.hc_attn_fn"),
    ):
        assert torch.equal(tensor, stored[name])
        assert tensor.data_ptr() % tensor.element_size() == 0


@pytest.mark.parametrize("options", [(), ("--unquantized",)])
def test_preset_of_the_golden_values(make_tiny: Callable[..., Path], options: tuple[str, ...]) -> None:
    directory = make_tiny("micro", *options)
    checkpoint = load_checkpoint(directory)
    raw: dict[str, Tensor] = {}
    for shard in shards(directory):
        raw |= load_file(shard)
    assert checkpoint.plan.num_tensors == len(raw)
    assert torch.equal(checkpoint.weights.layers[3].hc_attn.scale, raw["layers.3.hc_attn_scale"])
    draft = checkpoint.weights.draft
    assert draft is not None
    assert torch.equal(draft.markov_embed, raw["mtp.2.markov_head.embed.weight"])
    w2 = draft.layers[1].moe.shared.w2[0].data
    assert torch.equal(w2, raw["mtp.1.ffn.shared_experts.w2.weight"].view(w2.dtype))


def test_released_listing_maps_onto_the_released_model(released: Path, released_config: ModelConfig) -> None:
    plan = plan_checkpoint(released_config, read_listing(released / "tensors.tsv.gz"))
    assert plan.num_tensors == 96_085
    assert plan.num_bytes == 510_286_023_000
    assert len(plan.shards) == 48
    assert plan.tensors["layers.20.attn.indexer.wk.weight"].shard == "23"


def test_released_listing_without_draft_model(released: Path, released_config: ModelConfig) -> None:
    plan = plan_checkpoint(released_config, read_listing(released / "tensors.tsv.gz"), draft=False)
    assert not any(name.startswith("mtp.") for name in plan.tensors)
    assert plan.num_tensors == 93_684


def rows(**text: Any) -> tuple[ModelConfig, list[ListedTensor]]:
    config = ModelConfig.from_dict(tiny_config(text=text))
    return config, [ListedTensor(s.name, s.dtype, s.shape, "1") for s in expected_tensors(config).values()]


def test_plan_names_every_kind_of_mismatch_at_once() -> None:
    config, listing = rows()
    listing = [row for row in listing if row.name not in ("norm.weight", "layers.2.ffn.experts.3.w3.scale")]
    listing[0] = listing[0]._replace(shape=(1, 2))
    listing[1] = listing[1]._replace(dtype="F32")
    listing.append(ListedTensor("layers.9.attn.wkv.weight", "BF16", (1,), "1"))
    listing.append(ListedTensor("model.layers.0.hc_attn_norm.weight", "BF16", (1,), "1"))
    listing.append(listing[5]._replace(name="model." + listing[5].name))
    with pytest.raises(CheckpointError) as error:
        plan_checkpoint(config, listing, source="the listing")
    assert kinds(list(error.value.problems)) == {
        ProblemKind.MISSING: ["norm.weight", "layers.2.ffn.experts.3.w3.scale"],
        ProblemKind.WRONG_SHAPE: [listing[0].name],
        ProblemKind.WRONG_DTYPE: [listing[1].name],
        ProblemKind.UNEXPECTED: ["layers.9.attn.wkv.weight"],
        ProblemKind.FOLDED_NORM: ["model.layers.0.hc_attn_norm.weight"],
        ProblemKind.DUPLICATE: [listing[5].name],
    }
    assert "[1, 2], expected [320, 64]" in str(error.value)
    assert "F32, expected BF16" in str(error.value)


def test_long_lists_are_counted_not_spelled_out() -> None:
    config, listing = rows()
    with pytest.raises(CheckpointError) as error:
        plan_checkpoint(config, listing[:1])
    assert len(error.value.problems) == len(listing) - 1
    assert f"and {len(listing) - 1 - SHOWN_PER_KIND} more" in str(error.value)
    assert len(str(error.value)) < 2000


@pytest.mark.parametrize(
    "line",
    ["a\tBF16\t5", "a\tBF16\t5xx5\t1", "a\tBF16\t-5\t1", "a\tBF16\t5 x 5\t1", f"a\tBF16\t{9:05000}\t1"],
)
def test_malformed_listing(tmp_path: Path, line: str) -> None:
    file = tmp_path / "tensors.tsv"
    file.write_text(f"name\tdtype\tshape\tshard\nembed.weight\tBF16\t320x64\t1\n{line}\n")
    with pytest.raises(CheckpointError, match="line 3 is not name, dtype, shape, shard"):
        list(read_listing(file))


def test_truncated_listing(tmp_path: Path) -> None:
    file = tmp_path / "tensors.tsv.gz"
    file.write_bytes(b"\x1f\x8b\x08")
    with pytest.raises(CheckpointError, match="unreadable listing"):
        list(read_listing(file))


def test_no_directory_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint directory"):
        load_checkpoint(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        load_checkpoint(tmp_path)


def test_another_architecture(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"architectures": ["MixtralForCausalLM"], "hidden_size": 8}')
    with pytest.raises(ConfigError, match="MixtralForCausalLM"):
        load_checkpoint(checkpoint)


def test_given_configuration_replaces_the_file(checkpoint: Path) -> None:
    config = ModelConfig.from_file(checkpoint)
    (checkpoint / "config.json").unlink()
    assert load_checkpoint(checkpoint, config=config).config is config


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        ("{", "not JSON"),
        ("[]", "no weight_map"),
        ('{"weight_map": []}', "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": {"embed.weight": 1}}', "not a file name"),
        ('{"weight_map": {"embed.weight": "../model.safetensors"}}', "not a file name"),
        ('{"weight_map": {"embed.weight": ""}}', "not a file name"),
        ('{"weight_map": {"embed.weight": ".."}}', "not a file name"),
        ('{"weight_map": {"embed.weight": "a\\u0000b"}}', "not a file name"),
        ('{"weight_map": {"embed.weight": "\\ud800"}}', "not a file name"),
        ('{"weight_map": {"embed.weight": "1"}, "weight_map": {"embed.weight": "2"}}', "weight_map twice"),
        ("9" * 5000, "not JSON"),
    ],
)
def test_unreadable_index(checkpoint: Path, content: str, detail: str) -> None:
    (checkpoint / INDEX).write_text(content)
    (problem,) = problems_of(checkpoint)
    assert problem.kind is ProblemKind.UNREADABLE_INDEX
    assert detail in problem.detail


def as_directory(file: Path) -> None:
    file.mkdir()


def as_pipe(file: Path) -> None:
    os.mkfifo(file)


def as_circle(file: Path) -> None:
    file.symlink_to(file.name)


@pytest.mark.parametrize("make", [as_directory, as_pipe, as_circle])
@pytest.mark.parametrize("shard", [False, True])
def test_what_is_no_file(checkpoint: Path, make: Callable[[Path], None], shard: bool) -> None:
    file = shards(checkpoint)[1] if shard else checkpoint / INDEX
    file.unlink()
    make(file)
    kind = ProblemKind.UNREADABLE_SHARD if shard else ProblemKind.UNREADABLE_INDEX
    assert kinds(problems_of(checkpoint))[kind] == [file.name]


def test_names_that_no_output_can_encode(checkpoint: Path) -> None:
    edit_index(checkpoint, lambda weights: weights.update({"\ud800\n" + "x" * 1000: "absent"}))
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(checkpoint)
    message = str(error.value).encode("utf-8").decode()
    assert "\\ud800\\nxxx" in message
    assert "x" * 500 not in message


def test_neither_index_nor_single_file(checkpoint: Path) -> None:
    (checkpoint / INDEX).unlink()
    (problem,) = problems_of(checkpoint)
    assert problem.kind is ProblemKind.UNREADABLE_INDEX


def test_missing_shard(checkpoint: Path) -> None:
    lost = shards(checkpoint)[1]
    names = {name for name in split_shard(lost)[0] if name != "__metadata__"}
    lost.unlink()
    found = kinds(problems_of(checkpoint))
    assert found[ProblemKind.MISSING_SHARD] == [lost.name]
    assert set(found[ProblemKind.MISSING]) == names
    assert len(found[ProblemKind.MISSING]) == len(names)
    assert set(found) == {ProblemKind.MISSING_SHARD, ProblemKind.MISSING}
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(checkpoint)
    assert str(error.value).splitlines()[1:] == [
        f"  missing shard (1): {lost.name}",
        f"  missing tensor ({len(names)}): {len(names)} in {lost.name}",
    ]


@pytest.mark.parametrize("keep", [0, 4, 8, 300])
def test_shard_cut_inside_its_header(checkpoint: Path, keep: int) -> None:
    shard = shards(checkpoint)[0]
    shard.write_bytes(shard.read_bytes()[:keep])
    assert kinds(problems_of(checkpoint))[ProblemKind.TRUNCATED_SHARD] == [shard.name]


def test_shard_cut_inside_its_data(checkpoint: Path) -> None:
    shard = shards(checkpoint)[2]
    shard.write_bytes(shard.read_bytes()[:-1])
    (problem,) = problems_of(checkpoint)
    assert problem.kind is ProblemKind.TRUNCATED_SHARD
    assert problem.subject == shard.name
    assert "ends at byte" in problem.detail


def test_shard_cut_behind_its_header(checkpoint: Path) -> None:
    """One problem for the shard, not one for each of its tensors."""
    shard = shards(checkpoint)[2]
    header, _ = split_shard(shard)
    join_shard(shard, header, b"")
    (problem,) = problems_of(checkpoint)
    assert (problem.kind, problem.subject) == (ProblemKind.TRUNCATED_SHARD, shard.name)
    tensors = [name for name in header if name != "__metadata__"]
    assert f"of 0 bytes of data; {len(tensors) - 1} more end behind them" in problem.detail


def test_trailing_bytes(checkpoint: Path) -> None:
    shard = shards(checkpoint)[2]
    shard.write_bytes(shard.read_bytes() + b"12345")
    (problem,) = problems_of(checkpoint)
    assert problem.kind is ProblemKind.BAD_HEADER
    assert problem.detail == "5 bytes after the last tensor"


@pytest.mark.parametrize(
    ("key", "value", "detail"),
    [
        ("data_offsets", [0, 10**15], "do not hold"),
        ("data_offsets", [64, 0], "do not hold"),
        ("data_offsets", [-64, 64], "not two offsets"),
        ("data_offsets", [0], "not two offsets"),
        ("data_offsets", None, "not two offsets"),
        ("data_offsets", [0.0, 128.0], "not two offsets"),
        ("dtype", "F12", "dtype 'F12'"),
        ("dtype", ["BF16"], "dtype ['BF16']"),
        ("dtype", "F32", "do not hold"),
        ("shape", [2**40, 2**40], "do not hold"),
        ("shape", [10**3000, 10**3000], "not a list of sizes"),
        ("shape", [1] * 17, "at most 16"),
        ("shape", [True], "not a list of sizes"),
        ("shape", "64", "not a list of sizes"),
    ],
)
def test_lying_header(checkpoint: Path, key: str, value: object, detail: str) -> None:
    shard = next(s for s in shards(checkpoint) if "norm.weight" in split_shard(s)[0])
    edit_header(shard, lambda header: header["norm.weight"].update({key: value}))
    problems = problems_of(checkpoint)
    mine = [problem for problem in problems if problem.subject == "norm.weight"]
    assert [problem.kind for problem in mine] == [ProblemKind.BAD_HEADER]
    assert shard.name in mine[0].detail
    assert detail in mine[0].detail
    assert not any("gap" in problem.detail or "bytes after" in problem.detail for problem in problems)


def test_header_entry_that_is_no_object(checkpoint: Path) -> None:
    shard = next(s for s in shards(checkpoint) if "norm.weight" in split_shard(s)[0])
    edit_header(shard, lambda header: header.update({"norm.weight": 5}))
    assert "norm.weight" in kinds(problems_of(checkpoint))[ProblemKind.BAD_HEADER]


def test_header_entry_with_a_key_twice(single: Path) -> None:
    file = single / "model.safetensors"
    header, data = split_shard(file)
    join_shard(file, json.dumps(header).replace('"dtype"', '"dtype": "F32", "dtype"', 1).encode(), data)
    (problem,) = problems_of(single)
    assert problem.kind is ProblemKind.BAD_HEADER
    assert "named twice" in problem.detail


def test_overlapping_tensors(checkpoint: Path) -> None:
    """Two tensors over the same bytes leave a gap where the second should be."""
    shard = next(s for s in shards(checkpoint) if "layers.0.attn_norm.weight" in split_shard(s)[0])

    def overlap(header: Header) -> None:
        header["layers.0.attn_norm.weight"]["data_offsets"] = header["layers.0.ffn_norm.weight"][
            "data_offsets"
        ]

    edit_header(shard, overlap)
    problems = problems_of(checkpoint)
    assert {problem.kind for problem in problems} == {ProblemKind.BAD_HEADER}
    assert any("overlaps" in problem.detail for problem in problems)
    assert any("gap" in problem.detail for problem in problems)


@pytest.mark.parametrize(
    "header",
    [b"{", b"[1, 2]", b"\xff\xfe", b"null", '{"é": 1}'.encode("utf-16"), b'{"a": ' + b"9" * 5000 + b"}"],
)
def test_header_that_is_no_json_object(checkpoint: Path, header: bytes) -> None:
    shard = shards(checkpoint)[0]
    join_shard(shard, header, split_shard(shard)[1])
    assert kinds(problems_of(checkpoint))[ProblemKind.BAD_HEADER] == [shard.name]


def test_name_twice_in_one_header(single: Path) -> None:
    file = single / "model.safetensors"
    header, data = split_shard(file)
    text = json.dumps(header)
    join_shard(
        file, (text[:-1] + ', "norm.weight": ' + json.dumps(header["norm.weight"]) + "}").encode(), data
    )
    assert kinds(problems_of(single)) == {ProblemKind.DUPLICATE: ["norm.weight"]}


def test_both_spellings_in_one_file(single: Path) -> None:
    edit_single(single, lambda tensors: tensors.update({"model.norm.weight": tensors["norm.weight"].clone()}))
    assert kinds(problems_of(single)) == {ProblemKind.DUPLICATE: ["norm.weight"]}


def test_both_spellings_in_the_index(checkpoint: Path) -> None:
    edit_index(checkpoint, lambda weights: weights.update({"model.norm.weight": weights["norm.weight"]}))
    assert kinds(problems_of(checkpoint)) == {ProblemKind.DUPLICATE: ["norm.weight"]}


def test_prefix_may_differ_between_index_and_shard(checkpoint: Path) -> None:
    def rename(weights: dict[str, str]) -> None:
        for name in list(weights)[::2]:
            weights["model." + name] = weights.pop(name)

    edit_index(checkpoint, rename)
    assert load_checkpoint(checkpoint).plan.num_tensors == len(
        expected_tensors(ModelConfig.from_file(checkpoint))
    )


def test_index_names_another_shard(checkpoint: Path) -> None:
    first, *_, last = (shard.name for shard in shards(checkpoint))
    edit_index(checkpoint, lambda weights: weights.update({"embed.weight": last}))
    found = problems_of(checkpoint)
    assert Problem(ProblemKind.WRONG_SHARD, "embed.weight", f"index says {last}, it is in {first}") in found
    assert ProblemKind.MISSING not in kinds(found)


def test_index_names_a_tensor_that_no_shard_has(checkpoint: Path) -> None:
    shard = shards(checkpoint)[0]
    tensors = load_file(shard)
    del tensors["embed.weight"]
    save_file(tensors, shard)
    detail = f"index says {shard.name}, no shard has it"
    assert problems_of(checkpoint) == [Problem(ProblemKind.WRONG_SHARD, "embed.weight", detail)]


def test_tensor_in_a_shard_but_not_in_the_index(checkpoint: Path) -> None:
    edit_index(checkpoint, lambda weights: weights.pop("embed.weight"))
    found = kinds(problems_of(checkpoint))
    assert found == {ProblemKind.UNINDEXED: ["embed.weight"]}


def changes() -> Iterator[Any]:
    """How a tensor set is damaged, and the problems that must come out."""

    def drop(tensors: dict[str, Tensor]) -> None:
        del tensors["layers.4.ffn.experts.2.w1.scale"], tensors["mtp.0.main_norm.weight"]

    def add(tensors: dict[str, Tensor]) -> None:
        tensors["layers.0.attn.compressor.wkv.weight"] = torch.zeros(32, 64, dtype=torch.bfloat16)
        tensors["lm_head.weight"] = torch.zeros(1)

    def widen(tensors: dict[str, Tensor]) -> None:
        tensors["layers.0.attn.attn_sink"] = tensors["layers.0.attn.attn_sink"].to(torch.bfloat16)
        tensors["head.weight"] = tensors["head.weight"].float()

    def reshape(tensors: dict[str, Tensor]) -> None:
        tensors["layers.0.attn.wq_a.scale"] = tensors["layers.0.attn.wq_a.scale"].reshape(2, 1)
        tensors["norm.weight"] = tensors["norm.weight"][:32].clone()

    def fold(tensors: dict[str, Tensor]) -> None:
        tensors["mtp.1.hc_head_norm.weight"] = torch.ones(64)

    dropped = ["layers.4.ffn.experts.2.w1.scale", "mtp.0.main_norm.weight"]
    added = ["layers.0.attn.compressor.wkv.weight", "lm_head.weight"]
    yield pytest.param(drop, {ProblemKind.MISSING: dropped}, id="missing")
    yield pytest.param(add, {ProblemKind.UNEXPECTED: added}, id="unexpected")
    yield pytest.param(
        widen, {ProblemKind.WRONG_DTYPE: ["head.weight", "layers.0.attn.attn_sink"]}, id="dtype"
    )
    yield pytest.param(
        reshape, {ProblemKind.WRONG_SHAPE: ["layers.0.attn.wq_a.scale", "norm.weight"]}, id="shape"
    )
    yield pytest.param(fold, {ProblemKind.FOLDED_NORM: ["mtp.1.hc_head_norm.weight"]}, id="folded norm")


@pytest.mark.parametrize(("damage", "expected"), list(changes()))
def test_coverage_both_ways(
    single: Path, damage: Callable[[dict[str, Tensor]], None], expected: dict[ProblemKind, list[str]]
) -> None:
    edit_single(single, damage)
    found = kinds(problems_of(single))
    assert {kind: sorted(names) for kind, names in found.items()} == expected


def test_bf16_weights_under_a_quantized_configuration(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path, tiny_config(quantized=False))
    (directory / "config.json").write_text(json.dumps(tiny_config()))
    found = kinds(problems_of(directory))
    assert "layers.0.attn.wq_a.weight" in found[ProblemKind.WRONG_DTYPE]
    assert "layers.0.attn.wq_a.scale" in found[ProblemKind.MISSING]


def test_draft_switched_off_needs_no_draft_tensors(single: Path) -> None:
    def drop(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("mtp.1.")]:
            del tensors[name]
        tensors["mtp.0.main_norm.weight"] = torch.zeros(3)

    edit_single(single, drop)
    assert problems_of(single)
    assert load_checkpoint(single, draft=False).weights.draft is None


def test_no_draft_layers(tmp_path: Path) -> None:
    raw = tiny_config(text={"num_nextn_predict_layers": 0, "compress_ratios": [0, 2, 2, 1, 1, 1]})
    assert load_checkpoint(write_checkpoint(tmp_path, raw)).weights.draft is None


def test_tied_copies_in_the_draft_model_are_ignored(single: Path) -> None:
    edit_single(single, lambda tensors: tensors.update({"mtp.1.head.weight": torch.zeros(2, 2)}))
    checkpoint = load_checkpoint(single)
    assert "mtp.1.head.weight" not in checkpoint.plan.tensors
