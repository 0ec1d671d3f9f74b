"""How much an engine can hold: sequence length, cache blocks and state slots, from settings, model and memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Capacity:
    """What the pools of one engine are built for; block 0 and slot 0 are the null ones.

    ``max_model_len`` bounds prompt and output together. ``layout`` has the bytes of one block and one slot.
    """

    layout: CacheLayout
    max_model_len: int
    num_blocks: int
    num_slots: int

    @property
    def pool_bytes(self) -> int:
        """Bytes of both pools."""
        return self.num_blocks * self.layout.block_bytes + self.num_slots * self.layout.slot_bytes


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
    """Bytes that this process can still take without swapping: the machine's, or its control group's if less."""
    return min(_machine_memory(), _group_memory())


def _machine_memory() -> int:
    for line in _read(Path("/proc/meminfo")).splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group_memory() -> int:
    """What control group v2 leaves; a huge number where there is no limit. File pages count as free, as above."""
    group = Path("/sys/fs/cgroup")
    limit = _read(group / "memory.max").strip()
    used = _read(group / "memory.current").strip()
    if not limit.isdigit() or not used.isdigit():
        return 2**63 - 1
    cached = [
        line.split()
        for line in _read(group / "memory.stat").splitlines()
        if line.startswith("inactive_file ")
    ]
    return max(0, int(limit) - int(used) + sum(int(fields[1]) for fields in cached))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
