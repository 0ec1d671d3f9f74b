"""``di inspect``: what a checkpoint or a configuration amounts to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from di_engine.cli.common import (
    EXIT_USAGE,
    CommandError,
    bytes_text,
    existing_model,
    plain,
    print_json,
    print_table,
)
from di_engine.cli.usage import option_errors

if TYPE_CHECKING:
    from di_cache import Region

    from di_engine.inspection import Inspection

DIMENSIONS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "head_dim",
    "qk_rope_head_dim",
    "q_lora_rank",
    "o_lora_rank",
    "o_groups",
    "sliding_window",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "candidate_topk_blocks",
    "candidate_block_size",
    "n_routed_experts",
    "num_experts_per_tok",
    "n_shared_experts",
    "moe_intermediate_size",
    "hc_mult",
    "engram_layer_ids",
    "engram_n_heads",
    "engram_head_dim",
    "num_nextn_predict_layers",
    "dspark_block_size",
    "max_position_embeddings",
)
"""Keys of ``text_config`` that say how large the model is."""


def command(
    context: typer.Context,
    path: Annotated[
        str, typer.Argument(help="Checkpoint directory, a config.json, or the name of a shipped model.")
    ],
    tensors: Annotated[
        Path | None,
        typer.Option(
            exists=True, help="Match this listing (tab-separated name, dtype, shape, shard; plain or gzip)."
        ),
    ] = None,
    tokens: Annotated[
        list[int] | None, typer.Option(help="Context length for the memory table; may be repeated.")
    ] = None,
    numerics: Annotated[str, typer.Option(help="Cache formats: release or float32.")] = "release",
    block_size: Annotated[int, typer.Option(help="Tokens per cache block.")] = 128,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Show dimensions, roles, parameters and bytes by part, cache layout and memory. Reads no weights.

    Exits with 1 when the configuration or the checkpoint is bad, and with 2 when the command line is wrong.
    """
    from di_model.numerics import Numerics

    from di_engine.inspection import inspect_model

    if numerics not in {n.value for n in Numerics}:
        raise CommandError(f"--numerics: got {numerics!r}, allowed: release or float32", EXIT_USAGE)
    with option_errors(context):
        found = inspect_model(
            existing_model(path, or_config=True),
            listing=tensors,
            tokens=tokens or (),
            numerics=Numerics(numerics),
            block_size=block_size,
        )
    if as_json:
        print_json(_as_dict(found))
        return
    for part in (_dimensions(found), _layers(found), _parts(found), _cache(found), _memory(found)):
        print_table(part)
        typer.echo()
    typer.echo(_coverage_line(found))


def _as_dict(found: Inspection) -> dict[str, Any]:
    from di_model.summary import describe_role

    text, summary = found.config.text, found.summary
    return {
        "dimensions": {name: plain(getattr(text, name)) for name in DIMENSIONS},
        "layers": [
            {
                "name": layer.name,
                "roles": list(describe_role(layer.role)),
                "role": plain(layer.role),
                **plain(layer.count),
            }
            for layer in summary.layers
        ],
        "parts": [
            {"stage": part.stage.value, "part": part.part.value, **plain(part.count)}
            for part in summary.parts
        ],
        "dtypes": {dtype: plain(count) for dtype, count in summary.dtypes},
        "total": plain(summary.total),
        "cache": plain(found.cache),
        "memory": [{**plain(row), "total_bytes": row.total_bytes} for row in found.memory],
        "coverage": plain(found.coverage),
    }


def _dimensions(found: Inspection) -> Table:
    table = Table(title="Dimensions", title_justify="left", show_header=False, box=None, pad_edge=False)
    for name in DIMENSIONS:
        value = getattr(found.config.text, name)
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(list(value)))
    table.add_row(
        "quantization", "none (BF16)" if found.config.quantization is None else "FP8 32x32, MXFP4 experts"
    )
    return table


def _layers(found: Inspection) -> Table:
    from di_model.summary import describe_role

    table = _numeric_table("Layers", "layer", "what it does beyond its window", "parameters", "bytes")
    for layer in found.summary.layers:
        roles = ", ".join(describe_role(layer.role)) or "window only"
        table.add_row(layer.name, roles, f"{layer.count.parameters:,}", f"{layer.count.nbytes:,}")
    return table


def _parts(found: Inspection) -> Table:
    table = _numeric_table("Parts", "stage", "part", "tensors", "parameters", "bytes")
    for part in found.summary.parts:
        count = part.count
        table.add_row(
            part.stage.value,
            part.part.value,
            f"{count.tensors:,}",
            f"{count.parameters:,}",
            f"{count.nbytes:,}",
        )
    total = found.summary.total
    table.add_row("total", "", f"{total.tensors:,}", f"{total.parameters:,}", f"{total.nbytes:,}")
    return table


def _cache(found: Inspection) -> Table:
    cache = found.cache
    title = (
        f"Cache ({cache.numerics.value}): block of {cache.block_size} tokens {cache.block_bytes:,} B, slot "
        f"{cache.slot_bytes:,} B of which {cache.stored_bytes:,} B stored; offsets and bytes by layer"
    )
    table = _numeric_table(title, "layer", "index keys", "entries", "window ring", "compression ring")
    for layer in cache.layers:
        regions = (layer.index, layer.entries, layer.window, layer.compress)
        table.add_row(str(layer.layer), *(_region(region) for region in regions))
    return table


def _region(region: Region | None) -> str:
    return "" if region is None else f"{region.offset:,} + {region.nbytes:,}"


def _memory(found: Inspection) -> Table:
    table = _numeric_table("Memory of one sequence", "tokens", "blocks", "bytes of blocks and slot")
    for row in found.memory:
        table.add_row(f"{row.tokens:,}", f"{row.blocks:,}", bytes_text(row.total_bytes))
    return table


def _coverage_line(found: Inspection) -> str:
    total = found.summary.total
    text = f"{total.tensors:,} tensors, {total.nbytes:,} bytes of weights"
    if found.coverage is None:
        return f"{text} (from the configuration; no weights here)"
    covered = found.coverage
    return (
        f"{text}; {covered.source} holds them all: {covered.tensors:,} tensors, {covered.nbytes:,} bytes in "
        f"{covered.shards} shards"
    )


def _numeric_table(title: str, *columns: str) -> Table:
    """A table whose text columns come first; columns named as counts are set to the right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        right = column in ("tensors", "parameters", "bytes", "tokens", "blocks") or "ring" in column
        table.add_column(column, justify="right" if right else "left")
    return table
