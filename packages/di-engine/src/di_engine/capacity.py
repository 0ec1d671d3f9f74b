"""How much an engine can hold: sequence length, cache blocks and state slots, from settings, model and memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from di_cache import CacheLayout
from di_model.cache_spec import cache_spec
from di_model.config import ModelConfig
from di_model.packed import WeightLayout, copy_bytes
from di_scheduler import SchedulerConfig

from di_engine.config import EngineConfig
from di_engine.errors import EngineConfigError

DEFAULT_MAX_MODEL_LEN = 4096
"""Sequence length when none is asked for; the released model's own bound would ask for a pool of gigabytes."""

CACHE_MEMORY_FRACTION = 0.5
"""Share of the available memory that caches may take by default, after a copy of the weights that is packed in memory.
The rest is for activations, and for weights as stored or in a packed file: these are memory-mapped and count as
available until they are read."""

_MIN_BLOCKS = 2  # the null block and one to use
_NO_LIMIT = 2**63 - 1  # bytes; control groups of version 1 have about as many in their files for none


@dataclass(frozen=True)
class Capacity:
    """What the pools of one engine are built for; block 0 and slot 0 are the null ones.

    ``max_model_len`` bounds prompt and output together. ``layout`` has the bytes of one block and one slot.
    """

    layout: CacheLayout
    max_model_len: int
    num_blocks: int
    num_slots: int


def plan_weights(config: EngineConfig, model: ModelConfig, available_bytes: int) -> tuple[WeightLayout, int]:
    """Decide how weights lie and how many bytes of memory that takes for good; mapped weights take none.

    Args:
        config: settings of the engine. ``AUTO`` packs in memory only what leaves half of it.
        model: the model to serve.
        available_bytes: memory that weights and pools may take at most.

    Raises:
        EngineConfigError: ``weight_layout`` asks for a packed copy in memory that does not fit.
    """
    if config.packed_directory is not None:
        return config.weight_layout, 0
    needed = copy_bytes(model, config.weight_layout, draft=config.load_draft)
    if config.weight_layout is WeightLayout.AUTO:
        fits = 0 < needed <= available_bytes // 2
        return (WeightLayout.PACKED, needed) if fits else (WeightLayout.STORED, 0)
    if needed > available_bytes:
        allowed = (
            f"STORED, or PACKED with a packed_directory: a copy in memory takes {needed} bytes "
            f"and {available_bytes} are available"
        )
        raise EngineConfigError("weight_layout", config.weight_layout, allowed)
    return config.weight_layout, needed


def plan_capacity(config: EngineConfig, model: ModelConfig, available_bytes: int) -> Capacity:
    """Decide lengths and pool sizes.

    Args:
        config: settings of the engine.
        model: the model to serve.
        available_bytes: memory that the pools may take at most, weights in memory subtracted.

    Raises:
        EngineConfigError: ``max_model_len`` exceeds the model's positions, or the pools asked for, or the smallest
            possible ones, do not fit the memory.
    """
    layout = CacheLayout.from_spec(
        cache_spec(
            model,
            config.numerics,
            block_size=config.block_size,
            draft=config.load_draft,
            max_draft_tokens=config.max_draft_tokens,
        )
    )
    positions = model.text.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > positions:
        allowed = f"at most the model's max_position_embeddings ({positions})"
        raise EngineConfigError("max_model_len", config.max_model_len, allowed)
    length = config.max_model_len or min(positions, DEFAULT_MAX_MODEL_LEN)
    num_blocks = _num_blocks(config, layout, length, available_bytes)
    if config.max_model_len is None:
        length = min(length, (num_blocks - 1) * config.block_size)
    return Capacity(layout, length, num_blocks, config.max_num_seqs + 1)


def _num_blocks(config: EngineConfig, layout: CacheLayout, length: int, available_bytes: int) -> int:
    slot_bytes = (config.max_num_seqs + 1) * layout.slot_bytes
    least = slot_bytes + _MIN_BLOCKS * layout.block_bytes
    if config.num_blocks is not None:
        needed = slot_bytes + config.num_blocks * layout.block_bytes
        if needed > available_bytes:
            allowed = f"pools of at most {available_bytes} bytes, the memory available (these take {needed})"
            raise EngineConfigError("num_blocks", config.num_blocks, allowed)
        return config.num_blocks
    if config.kv_cache_bytes is not None:
        if not least <= config.kv_cache_bytes <= available_bytes:
            allowed = (
                f"from {least} ({config.max_num_seqs} state slots and one block) to {available_bytes} bytes"
            )
            raise EngineConfigError("kv_cache_bytes", config.kv_cache_bytes, allowed)
        return (config.kv_cache_bytes - slot_bytes) // layout.block_bytes
    budget = int(available_bytes * CACHE_MEMORY_FRACTION)
    if least > budget:
        allowed = f"as many as {budget} bytes of cache hold ({layout.slot_bytes} bytes each, and one block)"
        raise EngineConfigError("max_num_seqs", config.max_num_seqs, allowed)
    useful = config.max_num_seqs * layout.blocks_for(length) + 1
    return min(useful, (budget - slot_bytes) // layout.block_bytes)


def scheduler_config(
    config: EngineConfig, capacity: Capacity, model: ModelConfig, *, speculates: bool
) -> SchedulerConfig:
    """The scheduler of an engine with these pools. Without a drafter no rows are kept free for drafts."""
    return SchedulerConfig(
        num_blocks=capacity.num_blocks,
        num_slots=capacity.num_slots,
        block_size=capacity.layout.spec.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_chunk_tokens=config.max_chunk_tokens,
        max_model_len=capacity.max_model_len,
        max_draft_tokens=config.max_draft_tokens if speculates else 0,
        max_steps_in_flight=2 if config.async_scheduling else 1,
        lookback=max(model.text.engram_max_ngram_size - 1, 0),  # an n-gram reaches n - 1 tokens back
        policy=config.policy,
    )


def available_memory() -> int:
    """Bytes that this process can still take without swapping: the machine's, or its control groups' if less."""
    return min(_machine_memory(), _group_memory())


def total_memory() -> int | None:
    """Bytes of main memory that the machine has; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _machine_memory() -> int:
    for line in _read(Path("/proc/meminfo")).splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return total_memory() or 0


class _GroupFiles(NamedTuple):
    """Files of a control group's folder, and the line of its memory.stat with the file pages that can be given up;
    all of them count what is in groups inside it too."""

    limit: str
    used: str
    reclaimable: str

    def left(self, group: Path) -> int:
        """Bytes up to the group's limit, of which file pages take none, as in MemAvailable."""
        limit, used = _amount(_read(group / self.limit)), _amount(_read(group / self.used))
        if limit is None:  # "max" in version 2, or no such file
            return _NO_LIMIT
        lines = (line.split(" ", 1) for line in _read(group / "memory.stat").splitlines())
        files = next((_amount(line[-1]) for line in lines if line[0] == self.reclaimable), None)
        return max(0, limit - max(0, (used or 0) - (files or 0)))


_VERSION_1 = _GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _GroupFiles("memory.max", "memory.current", "inactive_file")
_ROOTS = "0::/\n1:memory:/"  # where the system does not tell which groups a process is in


def _group_memory(
    membership: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> int:
    """What the control groups of this process leave: the least of its own and all around it, each of which may have a
    limit; a huge number where none has.

    Args:
        membership: lines ``number:controllers:path``, without controllers for version 2.
        mounted: version 2, or a folder with the hierarchy of the memory controller of version 1.
    """
    left = _NO_LIMIT
    for line in (_read(membership) or _ROOTS).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        files, top = (_VERSION_1, mounted / "memory") if controllers else (_VERSION_2, mounted)
        parts = PurePosixPath(path).parts[1:]
        if ".." in parts:  # outside of what this process may see: the root is all that can be asked
            parts = ()
        # In a container the path may be the machine's and the root the container's group: what is not there is skipped.
        left = min(left, *(files.left(top.joinpath(*parts[:depth])) for depth in range(len(parts) + 1)))
    return left


def _amount(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _read(path: Path) -> str:
    """Contents of a file of the system, empty where there is none to read; names in it may be any bytes."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
