"""Settings of an engine: typed, validated when built, never read from the environment."""

from __future__ import annotations

import dataclasses
import enum
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from di_kernels import instruction_sets
from di_model.numerics import Numerics
from di_model.packed import WeightLayout
from di_scheduler import StepPolicy

from di_engine.errors import EngineConfigError
from di_engine.models import resolve_model

_MAX_INT = 2**31 - 1
_MAX_BYTES = 2**63 - 1
_MAX_SECONDS = 1e6
_U64 = 1 << 64

_E = TypeVar("_E", bound=enum.Enum)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything an engine is started with.

    model: checkpoint directory in the released Hugging Face layout, or the name of a model that the package ships
        ("nano"; see :mod:`di_engine.models`).
    tokenizer: ``tokenizer.json`` or the directory that holds it; None: the model directory.
    numerics: ``RELEASE`` (the arithmetic of the released code) or ``FLOAT32`` (for verification).
    max_model_len: most tokens of one sequence, prompt and output. None: the smallest of the model's
        ``max_position_embeddings``, what the cache pool holds and 4096.
    max_num_seqs: sequences that run at once; each holds a state slot.
    max_num_batched_tokens: most rows of one step; at least ``max_num_seqs``, so that every decode fits in one.
    max_chunk_tokens: most prompt rows of one sequence in one step. None: the step's budget.
    block_size: tokens of one cache block, even.
    num_blocks: blocks of the cache pool, the null block included. None: as many as ``kv_cache_bytes`` pays for.
    kv_cache_bytes: bytes of blocks and slots together. None: half of the memory available at start, or what
        ``max_num_seqs`` sequences of ``max_model_len`` tokens can use, whichever is less.
    policy: ``MIXED`` steps, or ``HOMOGENEOUS`` ones that hold prompt rows or decode rows only.
    num_threads: threads of the CPU kernels and of torch, for the whole process. None: leave them as they are.
        More than the processors that the process may use are allowed, and slower. Never changes a bit of a result.
    pin_threads: keep each thread of the CPU kernels on a processor of its own. One switch for the whole process: the
        first engine that asks for it switches it on, and its end switches it off, for other engines too; where several
        come and go, call :func:`di_kernels.pin_threads` before them, which they leave alone. The thread that calls the
        engine computes a part, so it, and threads and processes started from it, stay on its processor meanwhile; with
        ``async_scheduling`` the thread that computes does so, and this one is free.
    instruction_set: of the CPU kernels, for the whole process: one of :func:`di_kernels.instruction_sets`. None: leave
        it as it is, at first the best one. Changes no bit of a result, but for amx, which has bits of its own
        (:func:`di_kernels.equal_instruction_sets`): not while another engine computes, whose steps would have both.
    native_plan: compute a step in one native call instead of one operation after another, where the model allows it.
        Never changes a bit of a result.
    seed: makes requests without a seed of their own repeatable: the i-th of them draws from (seed, i). None:
        they draw from the operating system's entropy.
    load_draft: load the draft model and keep its cache up to date.
    max_draft_tokens: longest speculation, which the state rings leave room for. Without a drafter there is none.
    measure_step_cost: with a drafter, measure at start what steps of decodes cost here, and verify only the drafts that
        pay. False: all of them, until ``LLMEngine.set_step_cost``. Changes time only, never a bit of a result.
    curve_directory: where measured costs are kept for the next start. None: nowhere.
    weight_layout: ``STORED`` reads matrices where the checkpoint has them, ``PACKED`` interleaves them for the kernels,
        in memory or in a file of ``packed_directory``; ``AUTO`` packs where a directory is given or all matrices
        together are at most 1 GB and half of the memory available. Changes time only, never a bit of a result.
    packed_directory: where packed weights are kept: written at the first start, mapped at the next ones. None: nowhere.
        Not with ``STORED``, which would never use it. Files of checkpoints that have changed stay: see ``di packed``.
    async_scheduling: plan the next step, and commit the last, while one is computed in a thread of its own. Changes
        time only, never a bit of a result. A request that ends with a stop is computed for one step more than needed.
    step_timeout: with ``async_scheduling``, seconds that a step may take before the engine gives up waiting for it.

    Raises:
        EngineConfigError: a field is out of range.
    """

    model: Path
    tokenizer: Path | None = None
    numerics: Numerics = Numerics.RELEASE
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_chunk_tokens: int | None = None
    block_size: int = 128
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    policy: StepPolicy = StepPolicy.MIXED
    num_threads: int | None = None
    pin_threads: bool = False
    instruction_set: str | None = None
    native_plan: bool = True
    seed: int | None = None
    load_draft: bool = True
    max_draft_tokens: int = 5
    measure_step_cost: bool = False
    curve_directory: Path | None = None
    weight_layout: WeightLayout = WeightLayout.AUTO
    packed_directory: Path | None = None
    async_scheduling: bool = False
    step_timeout: float = 3600.0

    def __post_init__(self) -> None:
        for name in ("model", "tokenizer", "curve_directory", "packed_directory"):
            self._check_path(name)
        for name, cls in _ENUMERATIONS:
            if not isinstance(getattr(self, name), cls):
                raise EngineConfigError(name, getattr(self, name), " or ".join(str(member) for member in cls))
        for name in ("native_plan", "load_draft", "measure_step_cost", "async_scheduling", "pin_threads"):
            if not isinstance(getattr(self, name), bool):
                raise EngineConfigError(name, getattr(self, name), "True or False")
        self._check_timeout()
        if self.instruction_set not in (None, *instruction_sets()):
            allowed = f"{', '.join(instruction_sets())} (what this machine can run), or None"
            raise EngineConfigError("instruction_set", self.instruction_set, allowed)
        for name, (least, most, optional) in _INT_RANGES.items():
            object.__setattr__(self, name, _integer(name, getattr(self, name), least, most, optional))
        if self.block_size % 2:
            raise EngineConfigError(
                "block_size", self.block_size, "an even number (a compressed entry has 2 tokens)"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            allowed = f"at least max_num_seqs ({self.max_num_seqs}), so that every decode fits in one step"
            raise EngineConfigError("max_num_batched_tokens", self.max_num_batched_tokens, allowed)
        if self.num_blocks is not None and self.kv_cache_bytes is not None:
            raise EngineConfigError("kv_cache_bytes", self.kv_cache_bytes, "None when num_blocks is given")
        if self.weight_layout is WeightLayout.STORED and self.packed_directory is not None:
            allowed = "None when weight_layout is STORED, which packs nothing"
            raise EngineConfigError("packed_directory", self.packed_directory, allowed)

    def _check_path(self, name: str) -> None:
        value = getattr(self, name)
        if value is None and name != "model":
            return
        text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
        if not isinstance(text, str) or not _names_a_file(text):
            raise EngineConfigError(name, value, "a path")
        object.__setattr__(self, name, resolve_model(value) if name == "model" else Path(text))

    def _check_timeout(self) -> None:
        value = self.step_timeout
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_SECONDS:
            allowed = f"a number of seconds above 0 and at most {_MAX_SECONDS:g}"
            raise EngineConfigError("step_timeout", value, allowed)
        object.__setattr__(self, "step_timeout", float(value))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EngineConfig:
        """Build from plain data, where enumerations are spelled by value or name (``"float32"``, ``"mixed"``).

        Raises:
            EngineConfigError: a key is unknown, ``model`` is missing, or a value is out of range.
        """
        known = [entry.name for entry in dataclasses.fields(cls)]
        unknown = sorted(str(key) for key in values if key not in known)
        if unknown:
            raise EngineConfigError("engine configuration", unknown, f"only the keys {', '.join(known)}")
        if "model" not in values:
            raise EngineConfigError("model", None, "a path")
        plain = dict(values)
        for name, kind in _ENUMERATIONS:
            if isinstance(plain.get(name), str):
                plain[name] = _member(name, plain[name], kind)
        return cls(**plain)


_ENUMERATIONS: tuple[tuple[str, type[enum.Enum]], ...] = (
    ("numerics", Numerics),
    ("policy", StepPolicy),
    ("weight_layout", WeightLayout),
)
_INT_RANGES: dict[str, tuple[int, int, bool]] = {
    "max_model_len": (2, _MAX_INT, True),
    "max_num_seqs": (1, _MAX_INT, False),
    "max_num_batched_tokens": (1, _MAX_INT, False),
    "max_chunk_tokens": (1, _MAX_INT, True),
    "block_size": (2, 1 << 16, False),
    "num_blocks": (2, _MAX_INT, True),
    "kv_cache_bytes": (1, _MAX_BYTES, True),
    "num_threads": (1, 4096, True),
    "seed": (-(1 << 63), _U64 - 1, True),
    "max_draft_tokens": (0, 1024, False),
}


def _names_a_file(text: str) -> bool:
    """Whether the system can be asked for a file of that name: not with a zero byte, or half of a surrogate pair."""
    try:
        return text != "" and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _integer(name: str, value: object, least: int, most: int, optional: bool) -> int | None:
    if value is None and optional:
        return None
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        allowed = f"an integer in [{least}, {most}]{', or None' if optional else ''}"
        raise EngineConfigError(name, value, allowed)
    return number


def _member(name: str, text: str, kind: type[_E]) -> _E:
    for member in kind:
        if text.lower() in (str(member.value).lower(), member.name.lower()):
            return member
    raise EngineConfigError(name, text, " or ".join(repr(member.name.lower()) for member in kind))
