"""Every golden file of a directory against the reference model and against the engine's cached path."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from di_model.checkpoint import Checkpoint, load_checkpoint
from di_model.engram_tables import EngramData, derive_engram
from di_model.golden import (
    CaseResult,
    GoldenKind,
    ReferenceRunner,
    Runner,
    check_decode,
    check_engram,
    check_layers,
    check_logits,
    check_lowprec,
    check_operations,
    check_quantized_layers,
    check_tokenizer,
    classify,
    dispatched_operations,
    reference_operations,
)
from di_model.model import Model
from di_model.numerics import Numerics
from di_model.packed import WeightLayout, lay_out
from di_model.reference import ReferenceModel

from di_engine.verify.cached import CachedRunner
from di_engine.verify.damage import damage
from di_engine.verify.settings import kernel_settings
from di_engine.verify.unquantized import unquantized

CHUNKS = (None, 1, 7, 64)
"""Rows of a prefill step in the cached runs; None: the whole prompt."""

UNQUANTIZED_SUFFIX = "-bf16"
"""Folder of a preset's BF16 form: its name and this. Without it the same numbers come from the quantized form."""

MAX_POSITIONS = 1 << 16
"""Most positions to build rotary tables for; golden sequences are far shorter."""

OPERATIONS_SUBJECTS = (("reference", reference_operations), ("kernels", dispatched_operations))


@dataclass(frozen=True)
class Verdict:
    """One case with what was held to it: ``reference``, ``cached, chunks of 7``, ``kernels``, ..."""

    subject: str
    result: CaseResult


class FindingKind(enum.Enum):
    """Why a file of the directory gave no verdict."""

    NOT_UNDERSTOOD = "not understood"
    MISSED = "missed"


@dataclass(frozen=True)
class Finding:
    """A file without a verdict. One that is not understood is no miss; one that could not be checked is."""

    kind: FindingKind
    file: str
    reason: str


class GoldenVerification:
    """Checks the golden files of a directory.

    Args:
        directory: where the files are.
        checkpoints: holds a folder for each preset, with ``-bf16`` added for its unquantized form.
        tokenizer: the released ``tokenizer.json``, for the files about it; None: they are missed.
        chunks: schedules of the cached runs.
        num_threads: of the kernels.
        instruction_set: of the kernels; None: the one in use.
        weight_layout: of the cached path; the reference reads weights as stored.

    Raises:
        FileNotFoundError: ``directory`` or ``checkpoints`` is no directory.
        ValueError: a number of threads or an instruction set that the kernels do not have here.
    """

    def __init__(
        self,
        directory: Path,
        checkpoints: Path,
        tokenizer: Path | None,
        *,
        chunks: tuple[int | None, ...] = CHUNKS,
        num_threads: int = 1,
        instruction_set: str | None = None,
        weight_layout: WeightLayout = WeightLayout.AUTO,
    ) -> None:
        for name, path in (("golden directory", directory), ("checkpoints", checkpoints)):
            if not path.is_dir():
                raise FileNotFoundError(f"{name}: no directory at {path}")
        self.directory, self.checkpoints, self.tokenizer, self.chunks = (
            directory,
            checkpoints,
            tokenizer,
            chunks,
        )
        self._layout = weight_layout
        self._settings = partial(kernel_settings, num_threads=num_threads, instruction_set=instruction_set)
        with self._settings():
            pass  # refuses what cannot be

    def run(self) -> Iterator[Verdict | Finding]:
        """Verdicts and findings, file by file; the files of one preset share one loaded checkpoint."""
        seen: set[Verdict | Finding] = set()  # each subject finds the same arrays without a case
        with self._settings():
            for result in self._run():
                if not isinstance(result, Finding) or result not in seen:
                    seen.add(result)
                    yield result

    def _run(self) -> Iterator[Verdict | Finding]:
        understood: list[tuple[str, GoldenKind, str | None]] = []
        for path in sorted(self.directory.iterdir()):
            found = classify(path.name)
            if found is None:
                yield Finding(FindingKind.NOT_UNDERSTOOD, path.name, "no known golden file name")
            else:
                understood.append((path.name, *found))
        if not understood:
            yield Finding(FindingKind.MISSED, str(self.directory), "there is no golden file in it")
        presets: dict[str, _Preset] = {}
        for name, kind, preset in understood:
            fault = damage(self.directory / name)
            if fault is not None:
                yield Finding(FindingKind.MISSED, name, fault)
                continue
            try:
                if preset is None:
                    yield from self._global(name, kind)
                    continue
                if preset not in presets:  # the one before is let go
                    presets = {preset: _Preset(self.checkpoints / preset, self._layout)}
                yield from self._preset(name, kind, presets[preset])
            except Exception as error:
                # A file that cannot be checked is a miss, and must not hide the others.
                yield Finding(FindingKind.MISSED, name, f"{type(error).__name__}: {error}")

    def _global(self, name: str, kind: GoldenKind) -> Iterator[Verdict | Finding]:
        """Files that belong to no checkpoint."""
        path = self.directory / name
        if kind is GoldenKind.OPERATIONS:
            for subject, operations in OPERATIONS_SUBJECTS:
                yield from _verdicts(subject, check_operations(path, operations()))
        elif self.tokenizer is None:
            yield Finding(FindingKind.MISSED, name, "it needs the released tokenizer (--tokenizer)")
        elif kind is GoldenKind.TOKENIZER:
            yield from _verdicts("tokenizer", check_tokenizer(path, self.tokenizer))
        else:
            yield from _verdicts("tables", check_engram(path, self.tokenizer))

    def _preset(self, name: str, kind: GoldenKind, preset: _Preset) -> Iterator[Verdict | Finding]:
        """Files about the model of one preset."""
        path = self.directory / name
        if kind is GoldenKind.QUANTIZED_LAYERS:
            model = preset.quantized(Numerics.RELEASE)
            judge = ReferenceRunner(model.reference)  # its scores say which other selections are as good
            for subject, runner in self._runners(model, (None,)):
                yield from _verdicts(subject, check_quantized_layers(path, runner, judge))
        elif kind is GoldenKind.LOWPREC:
            quantized = self._runners(preset.quantized(Numerics.RELEASE), self.chunks)
            plain = self._runners(preset.unquantized(Numerics.RELEASE), self.chunks)
            for (subject, first), (_, second) in zip(quantized, plain, strict=True):
                yield from _verdicts(subject, check_lowprec(path, first, second))
        else:
            check = _FLOAT32_CHECKS[kind]
            for subject, runner in self._runners(preset.quantized(Numerics.FLOAT32), self.chunks):
                yield from _verdicts(subject, check(path, runner))
            if kind is GoldenKind.LOGITS:
                # In float32 numerics the form that weights are stored in changes nothing.
                for subject, runner in self._runners(preset.unquantized(Numerics.FLOAT32), (None,)):
                    yield from _verdicts(f"{subject}, unquantized", check_logits(path, runner, cuts=False))

    def _runners(self, model: _Loaded, chunks: tuple[int | None, ...]) -> Iterator[tuple[str, _AnyRunner]]:
        yield "reference", ReferenceRunner(model.reference)
        for chunk in chunks:
            yield (
                f"cached, {'whole prompt' if chunk is None else f'chunks of {chunk}'}",
                CachedRunner(model.cached, chunk),
            )


_AnyRunner = ReferenceRunner | CachedRunner
_FLOAT32_CHECKS: dict[GoldenKind, Callable[[Path, Runner], Iterable[CaseResult]]] = {
    GoldenKind.LOGITS: check_logits,
    GoldenKind.DECODE: check_decode,
    GoldenKind.LAYERS: check_layers,
}


def _verdicts(subject: str, results: Iterable[CaseResult]) -> Iterator[Verdict | Finding]:
    for result in results:
        if result.understood:
            yield Verdict(subject, result)
        else:
            yield Finding(FindingKind.NOT_UNDERSTOOD, result.file, result.figure)


@dataclass(frozen=True, eq=False)
class _Loaded:
    """Both forward passes over the same weights."""

    reference: ReferenceModel
    cached: Model


@dataclass(eq=False)
class _Preset:
    """The checkpoints of one preset, opened when a file asks for them."""

    folder: Path
    layout: WeightLayout
    _checkpoints: dict[bool, Checkpoint] = field(default_factory=dict)
    _models: dict[tuple[bool, Numerics], _Loaded] = field(default_factory=dict)

    def quantized(self, numerics: Numerics) -> _Loaded:
        """Models over the preset's own checkpoint."""
        return self._model(True, numerics)

    def unquantized(self, numerics: Numerics) -> _Loaded:
        """Models over the same numbers in BF16."""
        return self._model(False, numerics)

    def _model(self, quantized: bool, numerics: Numerics) -> _Loaded:
        if (quantized, numerics) not in self._models:
            self._models[quantized, numerics] = _load(self._checkpoint(quantized), numerics, self.layout)
        return self._models[quantized, numerics]

    def _checkpoint(self, quantized: bool) -> Checkpoint:
        if quantized not in self._checkpoints:
            folder = self.folder.with_name(self.folder.name + UNQUANTIZED_SUFFIX)
            if not quantized and not folder.is_dir():
                self._checkpoints[quantized] = unquantized(self._checkpoint(True))
            else:
                self._checkpoints[quantized] = load_checkpoint(self.folder if quantized else folder)
        return self._checkpoints[quantized]


def _load(checkpoint: Checkpoint, numerics: Numerics, layout: WeightLayout) -> _Loaded:
    config, weights = checkpoint.config, checkpoint.weights
    engram: EngramData | None = derive_engram(config, checkpoint.path)
    positions = min(config.text.max_position_embeddings, MAX_POSITIONS) + config.text.dspark_block_size
    return _Loaded(
        ReferenceModel(config, weights, engram, numerics),
        Model(config, lay_out(checkpoint, layout), engram, numerics, positions),
    )
