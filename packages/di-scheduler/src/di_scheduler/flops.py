"""FLOPs of the rows of a step, as closed forms over whole plans.

What is counted, and how, follows the scheduler spec, 15: contractions of the target model only, in FP8-equivalent
FLOPs. The draft model, padding, norms, activations and vision are left out.

Positions are counted as lengths: position `p` sees `t = p + 1` tokens, itself included, so that a piece of `q` rows
that ends after `k` tokens has the lengths `k - q + 1 .. k`.
"""

import enum
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from di_scheduler._checks import check_int
from di_scheduler._native import StepPlan
from di_scheduler.errors import ConfigError

Int64Array = NDArray[np.int64]

_INT64_MAX = 2**63 - 1
_SIZES = (
    "hidden_size",
    "vocab_size",
    "num_heads",
    "head_dim",
    "q_lora_rank",
    "o_lora_rank",
    "o_groups",
    "window",
    "candidate_block_size",
    "expert_width",
    "experts_per_token",
)
_OPTIONAL_SIZES = (
    "index_topk",
    "index_heads",
    "index_head_dim",
    "candidate_blocks",
    "shared_experts",
    "routed_experts",
    "hc_streams",
    "engram_width",
)


class Precision(enum.IntEnum):
    """Operand format of a contraction; the value is the cost of one multiply-add in FP8-equivalent FLOPs."""

    FP4 = 1
    FP8 = 2
    BF16 = 4
    FP32 = 8


class PrefillTruncation(enum.Enum):
    """What consumer layers do with prompt rows before the last `keep_tokens` (attention spec, 12.3)."""

    OFF = "off"
    """Compute them like all others."""
    MASK = "mask"
    """Compute them without window keys from before the kept tokens."""
    COMPACT = "compact"
    """Leave them out; one row of a chunk always stays."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer computes; sharing makes layers of one model differ. Raises `ConfigError`."""

    ratio: int = 0
    """Tokens of one compressed entry; 0: the layer sees its window only."""
    stores_kv: bool = False
    """It computes the compressed entries that it and later layers read."""
    computes_index: bool = False
    """It scores entries and selects the top-k that it and later layers read."""
    stores_index_keys: bool = False
    """It computes the keys that index queries are scored against."""
    uses_candidates: bool = False
    """It scores entries of candidate blocks only."""
    has_engram: bool = False

    def __post_init__(self) -> None:
        check_int("ratio", self.ratio, 0)
        compressed = self.stores_kv or self.computes_index or self.stores_index_keys or self.uses_candidates
        if compressed and not self.ratio:
            raise ConfigError(f"ratio must be at least 1 in a layer of compressed entries, got 0 in {self}")
        if self.uses_candidates and not self.computes_index:
            raise ConfigError(f"computes_index must be True where uses_candidates is, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes that the estimate depends on. Raises `ConfigError` naming the first that is out of range."""

    layers: tuple[LayerShape, ...]
    producer_layers: int
    """The first layers, whose rows are never truncated; the others are consumers (attention spec, 12.1)."""
    hidden_size: int
    vocab_size: int
    num_heads: int
    head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    window: int
    """Tokens of the sliding window, the row's own included."""
    index_topk: int = 0
    """Compressed entries that a row attends to at most; 0: all."""
    index_heads: int = 0
    index_head_dim: int = 0
    candidate_blocks: int = 0
    candidate_block_size: int = 1
    """Compressed entries of one candidate block."""
    expert_width: int
    experts_per_token: int
    shared_experts: int
    routed_experts: int
    hc_streams: int = 0
    """Residual streams of the hyper-connections; 0: there are none."""
    hc_shifted: bool = True
    engram_width: int = 0
    """Width of one gathered Engram row."""
    attention_precision: Precision = Precision.FP8
    expert_precision: Precision = Precision.FP8
    index_precision: Precision = Precision.FP4
    engram_precision: Precision = Precision.FP8
    truncation: PrefillTruncation = PrefillTruncation.OFF
    keep_tokens: int = 0

    def __post_init__(self) -> None:
        for name in _SIZES:
            check_int(name, getattr(self, name), 1)
        for name in _OPTIONAL_SIZES:
            check_int(name, getattr(self, name), 0)
        if not self.layers:
            raise ConfigError("layers must hold at least one layer, got none")
        check_int("producer_layers", self.producer_layers, 0, len(self.layers))
        check_int("keep_tokens", self.keep_tokens, int(self.truncation is not PrefillTruncation.OFF))
        if any(layer.uses_candidates for layer in self.layers):
            check_int("candidate_blocks", self.candidate_blocks, 1)

    def is_consumer(self, layer: int) -> bool:
        """Whether truncation concerns the layer of this index."""
        return layer >= self.producer_layers


@dataclass(frozen=True, slots=True, eq=False)
class FlopsEstimate:
    """FP8-equivalent FLOPs of S pieces of sequences."""

    pairs: Int64Array
    """[S] of core attention and index scoring: what grows with the context."""
    attention: Int64Array
    """[S] `pairs` and the projections of attention."""
    total: Int64Array
    """[S] `attention`, hyper-connections, experts, Engram and the output head."""


@dataclass(frozen=True, slots=True)
class PairCount:
    """How many keys rows see: min(floor((t + shift) / ratio), cap) for a row of length t; `cap` 0: no cap.

    `shift` is below `ratio`.
    """

    ratio: int
    cap: int = 0
    shift: int = 0

    def up_to(self, length: Int64Array) -> Int64Array:
        """The sum over t = 1 .. length, elementwise.

        With b = floor(n / r): b (n + 1) - r b (b + 1) / 2 up to the length where the cap is reached, `cap` a row from
        there on (scheduler spec, 15).
        """
        n = length + self.shift if self.shift else length
        head = np.minimum(n, self.ratio * self.cap) if self.cap else n
        if self.ratio == 1:
            twice = head * (head + 1)
        else:
            full = head // self.ratio
            twice = full * (2 * (head + 1) - self.ratio * (full + 1))
        pairs: Int64Array = twice >> 1
        if self.cap:
            pairs += (n - head) * self.cap
        return pairs

    def at_most(self, length: int) -> int:
        """An upper bound for the keys of one row of at most `length` tokens."""
        return self.cap or (length + self.shift) // self.ratio


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """S pieces of sequences. Ends and starts lie in one array, so that a closed form is evaluated once for both."""

    all_rows: Int64Array
    """[2, S] the rows have the lengths `all_rows[1] + 1 .. all_rows[0]`."""
    kept_rows: Int64Array
    """[2, S] the same for the rows that compaction keeps."""
    window: Int64Array
    """[2, S] `all_rows` without the tokens whose window keys are not there."""
    truncated_window: Int64Array
    """[2, S] the same in consumer layers of a truncated prompt, for the rows computed there."""


class FlopsEstimator:
    """FLOPs of pieces of sequences: what depends on the shape alone is summed once, over all layers.

    `max_context` bounds the lengths that `estimate` accepts, so that no count leaves 64 bits; `ConfigError` when one
    of that length would.
    """

    def __init__(self, shape: ModelShape, *, max_context: int = 2**21) -> None:
        check_int("max_context", max_context, 1)
        self.shape = shape
        self.max_context = max_context
        self._truncates = shape.truncation is not PrefillTruncation.OFF
        self._compact = shape.truncation is PrefillTruncation.COMPACT
        self._window = PairCount(1, shape.window)
        self._window_flops: dict[bool, int] = defaultdict(int)  # by whether prompts are truncated there
        # By count and "compact rows only".
        self._pair_flops: dict[tuple[PairCount, bool], int] = defaultdict(int)
        self._index_key_flops: dict[int, int] = defaultdict(int)  # a new entry, by ratio
        self._row_flops = 0  # of attention, a row
        self._compact_row_flops = 0  # of attention, a row that compaction keeps
        for index, layer in enumerate(shape.layers):
            self._add_layer(layer, shape.is_consumer(index))
        self._producer_flops, self._consumer_flops = _feed_forward(shape)
        self._logits_flops = Precision.BF16 * shape.hidden_size * shape.vocab_size
        self._check_range()

    def estimate(
        self,
        rows: ArrayLike,
        context: ArrayLike,
        prefill: ArrayLike,
        *,
        known: ArrayLike | None = None,
        window_start: ArrayLike | None = None,
    ) -> FlopsEstimate:
        """FLOPs of S pieces.

        `rows`: integers [S], at least 1: rows computed. `context`: [S], at least `rows`: tokens of the sequence up to
        and including the last row. `prefill`: bool [S], whether they are prompt rows: truncated if the shape says so,
        and one row of logits instead of one for each. `known`: [S], at least `context`: tokens known of the sequence,
        for truncation; None: `context`. `window_start`: [S], from 0 to `context - rows`: first token whose window key
        is there; None: 0. Raises `ValueError` naming what is out of range.
        """
        q = np.asarray(rows, np.int64)
        k = np.asarray(context, np.int64)
        is_prefill = np.asarray(prefill, np.bool_)
        length = k if known is None else np.asarray(known, np.int64)
        floor = None if window_start is None else np.asarray(window_start, np.int64)
        _check_shapes(q, context=k, prefill=is_prefill, known=length, window_start=floor)
        _check_between("rows", q, 1, k)
        _check_between("context", k, 1, self.max_context)
        _check_between("known", length, k, self.max_context)
        if floor is not None:
            _check_between("window_start", floor, 0, k - q)
        return self._estimate(q, k, is_prefill, length, floor)

    def of_plan(self, plan: StepPlan) -> FlopsEstimate:
        """FLOPs of a scheduler's plan, one entry for each of its sequences.

        Lengths are those planned: drafts count whether they are accepted or not, and what a step in flight has yet to
        tell (`StepPlan.resolve`) does not.
        """
        q = plan.q_len.astype(np.int64)
        end = plan.q_start + q
        known = np.maximum(plan.prompt_len.astype(np.int64) + plan.output_len, end)
        return self._estimate(q, end, ~plan.decodes, known, None)

    def _estimate(
        self,
        q: Int64Array,
        k: Int64Array,
        prefill: NDArray[np.bool_],
        length: Int64Array,
        floor: Int64Array | None,
    ) -> FlopsEstimate:
        pieces = self._pieces(q, k, prefill, length, floor)
        prefix = np.zeros_like(pieces.all_rows)  # FLOPs of the whole sequences up to ends and starts
        for truncated, flops in self._window_flops.items():
            prefix += self._window.up_to(pieces.truncated_window if truncated else pieces.window) * flops
        for (count, compact), flops in self._pair_flops.items():
            prefix += count.up_to(pieces.kept_rows if compact else pieces.all_rows) * flops
        pairs = prefix[0] - prefix[1]
        consumer_rows = pieces.kept_rows[0] - pieces.kept_rows[1]
        attention = pairs + q * self._row_flops
        if self._compact_row_flops:
            attention += consumer_rows * self._compact_row_flops
        for ratio, flops in self._index_key_flops.items():
            attention += _new_entries(pieces, q, prefill, ratio) * flops
        total = attention + np.where(prefill, 1, q) * self._logits_flops
        total += q * self._producer_flops
        total += consumer_rows * self._consumer_flops
        return FlopsEstimate(pairs, attention, total)

    def _pieces(
        self,
        q: Int64Array,
        k: Int64Array,
        prefill: NDArray[np.bool_],
        length: Int64Array,
        floor: Int64Array | None,
    ) -> _Pieces:
        rows = np.stack((k, k - q))
        window = rows if floor is None else rows - floor
        if not self._truncates:
            return _Pieces(rows, rows, window, window)
        cut = length - self.shape.keep_tokens
        kept = rows
        if self._compact:
            kept = np.stack((k, np.where(prefill, np.clip(cut, rows[1], k - 1), rows[1])))
        first = 0 if floor is None else floor
        lost = np.where(prefill, np.maximum(first, cut), first)
        return _Pieces(rows, kept, window, np.maximum(kept - lost, 0))

    def _add_layer(self, layer: LayerShape, consumer: bool) -> None:
        shape = self.shape
        compact = self._compact and consumer
        pair = Precision.BF16 * shape.num_heads * 2 * shape.head_dim
        self._window_flops[self._truncates and consumer] += pair
        if layer.ratio:
            self._pair_flops[PairCount(layer.ratio, shape.index_topk), compact] += pair
        row = _attention_row(shape, layer.computes_index)
        if compact:
            self._compact_row_flops += row
        else:
            self._row_flops += row
        if layer.stores_kv:  # of all rows, also those that compaction removes; with ratio 2, gate and latent
            latents = 1 if layer.ratio == 1 else 2
            self._row_flops += Precision.BF16 * shape.hidden_size * latents * shape.head_dim
        if layer.stores_index_keys:
            self._index_key_flops[layer.ratio] += Precision.BF16 * shape.head_dim * shape.index_head_dim
        if layer.computes_index:
            count, entries = PairCount(layer.ratio), 1
            if layer.uses_candidates:  # whole blocks, the last one begun included
                entries = shape.candidate_block_size
                count = PairCount(
                    layer.ratio * entries, shape.candidate_blocks, shift=layer.ratio * (entries - 1)
                )
            score = shape.index_precision * shape.index_heads * shape.index_head_dim
            self._pair_flops[count, compact] += score * entries

    def _check_range(self) -> None:
        n = self.max_context
        row = self._row_flops + self._compact_row_flops + self._producer_flops + self._consumer_flops
        row += self._logits_flops + sum(self._index_key_flops.values())
        row += sum(flops * self._window.at_most(n) for flops in self._window_flops.values())
        row += sum(flops * count.at_most(n) for (count, _), flops in self._pair_flops.items())
        if row * n > _INT64_MAX:
            raise ConfigError(
                f"max_context must be at most about {_INT64_MAX // row} for this shape, got {n}"
            )


def _attention_row(shape: ModelShape, computes_index: bool) -> int:
    """Projections of one attention row: q and window KV, q heads, grouped output, output, index weights."""
    hidden, heads = shape.hidden_size, shape.num_heads
    index_heads, index_dim = (shape.index_heads, shape.index_head_dim) if computes_index else (0, 0)
    cost = shape.attention_precision
    return (
        cost * hidden * (shape.q_lora_rank + shape.head_dim)
        + cost * shape.q_lora_rank * (heads * shape.head_dim + index_heads * index_dim)
        + Precision.FP8 * heads * shape.head_dim * shape.o_lora_rank
        + cost * shape.o_groups * shape.o_lora_rank * hidden
        + Precision.BF16 * hidden * index_heads
    )


def _new_entries(pieces: _Pieces, q: Int64Array, prefill: NDArray[np.bool_], ratio: int) -> Int64Array:
    """Rows of the index key projection: prefill makes one an entry and at least one, decode one a row."""
    if ratio == 1:
        return q
    whole = pieces.all_rows // ratio
    return np.where(prefill, np.maximum(whole[0] - whole[1], 1), q)


def _feed_forward(shape: ModelShape) -> tuple[int, int]:
    """FLOPs of one row apart from attention and logits: in producer layers, and in consumer layers."""
    hidden, streams = shape.hidden_size, shape.hc_streams
    experts = shape.expert_precision * 3 * hidden * shape.expert_width
    layer_flops = experts * (shape.experts_per_token + shape.shared_experts)
    layer_flops += Precision.BF16 * hidden * shape.routed_experts
    mix = Precision.FP32 * streams * hidden
    pre = mix * streams * (streams + 2) + mix
    post = mix * (streams + 1)
    layer_flops += 2 * (pre + post)
    engram = shape.engram_precision * shape.engram_width * hidden * (streams + 1) + mix
    sides = [0, 0]
    for index, layer in enumerate(shape.layers):
        sides[shape.is_consumer(index)] += layer_flops + (engram if layer.has_engram else 0)
    producer, consumer = sides
    if streams:
        consumer += mix + (0 if shape.hc_shifted else mix * streams)
        if shape.hc_shifted:
            producer -= mix  # the first sub-layer reads the embedding itself
        if shape.truncation is PrefillTruncation.COMPACT and shape.producer_layers < len(shape.layers):
            producer, consumer = producer + pre, consumer - pre  # done for all rows, before they are removed
    return producer, consumer


def _check_shapes(rows: NDArray[Any], **others: NDArray[Any] | None) -> None:
    if rows.ndim != 1:
        raise ValueError(f"rows must be 1-dimensional, got shape {rows.shape}")
    for name, value in others.items():
        if value is not None and value.shape != rows.shape:
            raise ValueError(f"{name} must have the shape of rows, {rows.shape}, got {value.shape}")


def _check_between(name: str, value: Int64Array, low: Int64Array | int, high: Int64Array | int) -> None:
    bad = np.flatnonzero((value < low) | (value > high))
    if bad.size:
        i = int(bad[0])
        least, most = (int(np.broadcast_to(bound, value.shape)[i]) for bound in (low, high))
        raise ValueError(f"{name}[{i}] must be from {least} to {most}, got {int(value[i])}")
