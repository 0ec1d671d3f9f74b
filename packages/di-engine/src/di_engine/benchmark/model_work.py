"""What a step of a model has to read and compute at least, layer by layer, from its configuration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from di_kernels.ops.formats import EntryFormat
from di_model.config import ModelConfig
from di_model.tensors import Part, TensorSpec, expected_tensors
from di_model.topology import LayerRole

from di_engine.benchmark.work import Work, attention_work, index_work

UNREAD = (Part.EXPERTS, Part.ENGRAM_TABLE)
"""Parts of a layer of which a step reads some rows or some experts only."""
MATRICES = (
    Part.ATTENTION,
    Part.COMPRESSOR,
    Part.INDEXER,
    Part.HYPER,
    Part.ROUTER,
    Part.SHARED_EXPERTS,
    Part.ENGRAM,
)


@dataclass(frozen=True, slots=True)
class StepShape:
    """Sequences of a step: ``rows`` rows each, behind ``start`` tokens."""

    sequences: int
    start: int
    rows: int

    @property
    def num_rows(self) -> int:
        """Of all sequences."""
        return self.sequences * self.rows

    @property
    def positions(self) -> range:
        """Of one sequence."""
        return range(self.start, self.start + self.rows)


def expected_experts(experts: int, top_k: int, rows: int) -> float:
    """How many different experts ``rows`` rows hit on average, if every expert is as likely as any other."""
    return experts * (1 - (1 - top_k / experts) ** rows)


class ModelWork:
    """Counts for one configuration."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self._specs: dict[int | None, list[TensorSpec]] = defaultdict(list)
        for spec in expected_tensors(config).values():
            self._specs[spec.layer].append(spec)

    @property
    def expert_bytes(self) -> int:
        """Of one routed expert."""
        specs = self._specs[self.config.text.layers[0].index]
        return (
            sum(spec.nbytes for spec in specs if spec.part is Part.EXPERTS)
            // self.config.text.n_routed_experts
        )

    def step(self, shape: StepShape, experts: Mapping[int, float] | None = None) -> Work:
        """The backbone with embedding and, for the last row of each sequence, the output head.

        Args:
            shape: rows of the step.
            experts: routed experts that the step hits in each layer; by default as many as are expected.
        """
        text = self.config.text
        head = next(spec for spec in self._specs[None] if spec.part is Part.HEAD)
        total = Work(head.nbytes, 2 * head.parameters * shape.sequences)
        total += Work(shape.num_rows * 2 * text.hidden_size)
        for role in text.layers:
            hit = None if experts is None else experts[role.index]
            total += self.layer(role, shape, hit)
        return total

    def layer(self, role: LayerRole, shape: StepShape, experts: float | None = None) -> Work:
        """One layer. ``experts``: routed experts that the step hits; by default as many as are expected."""
        text = self.config.text
        hit = (
            expected_experts(text.n_routed_experts, text.num_experts_per_tok, shape.num_rows)
            if experts is None
            else experts
        )
        specs = self._specs[role.index]
        read = sum(spec.nbytes for spec in specs if _is_read(spec)) + round(hit * self.expert_bytes)
        flops = sum(2 * spec.parameters * _rows(spec, role, shape) for spec in specs if _is_matrix(spec))
        expert = 3 * text.hidden_size * text.moe_intermediate_size
        flops += 2 * expert * text.num_experts_per_tok * shape.num_rows
        total = Work(read, flops)
        for work in self._caches(role, shape):
            total += work
        return total

    def _caches(self, role: LayerRole, shape: StepShape) -> Iterator[Work]:
        """Of attention, indexer and Engram. Keys of this step's own rows are activations; what several rows of a
        sequence read is read once."""
        text = self.config.text
        window = attention_work(
            1, text.num_attention_heads, text.head_dim, (1, EntryFormat.FP8), (0, EntryFormat.FP4)
        )
        entry = attention_work(
            1, text.num_attention_heads, text.head_dim, (0, EntryFormat.FP8), (1, EntryFormat.FP4)
        )
        keys = sum(min(position + 1, text.sliding_window) for position in shape.positions)
        held = min(shape.start, text.sliding_window - 1)
        yield _times(window, shape.sequences, held, keys)
        if role.ratio:
            visible = [(position + 1) // role.ratio for position in shape.positions]
            selected = [min(count, text.index_topk) for count in visible]
            yield _times(entry, shape.sequences, min(sum(selected), visible[-1]), sum(selected))
            if role.is_index_source:
                yield self._index(role, visible, shape.sequences)
        if role.engram is not None:
            columns = text.engram_features // text.engram_head_dim
            row_bytes = EntryFormat.FP8.record_bytes(text.engram_head_dim)
            yield Work(shape.num_rows * columns * row_bytes)

    def _index(self, role: LayerRole, visible: list[int], sequences: int) -> Work:
        text = self.config.text
        most = visible[-1]
        if role.candidate_source is not None and not role.is_candidate_source:
            most = text.candidate_topk_blocks * text.candidate_block_size
        scored = [min(count, most) for count in visible]
        one = index_work(1, text.index_n_heads, text.index_head_dim, 1)
        return _times(one, sequences, min(sum(scored), visible[-1]), sum(scored))


def _times(work: Work, sequences: int, read: int, computed: int) -> Work:
    return Work(work.read * read * sequences, work.flops * computed * sequences)


def _is_read(spec: TensorSpec) -> bool:
    """Whether a step over text reads all of it."""
    return spec.part not in UNREAD and not spec.name.endswith("gate.bias_vl")


def _is_matrix(spec: TensorSpec) -> bool:
    """Whether rows are multiplied with it; the gate weights of Engram are vectors a stream."""
    return spec.part in MATRICES and len(spec.shape) == 2 and not spec.name.endswith(("q_weight", "k_weight"))


def _rows(spec: TensorSpec, role: LayerRole, shape: StepShape) -> int:
    """Rows that meet a matrix: of index keys one for each entry, else all."""
    if spec.name.endswith("indexer.wk.weight"):
        return shape.num_rows // role.ratio
    return shape.num_rows
