"""Attention of nano over a batch of whole sequences, for training: blocks of queries, dense masks, no cache.

The same formulas as ``di_model.reference``; selections are masks over all entries instead of gathered columns.
Source: attention specification, 4 to 10.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from di_model.config import ModelConfig
from di_model.rope import RopeTables
from di_model.topology import LayerRole
from torch import Tensor
from torch.nn import functional

from examples.nano.functions import sink_attention
from examples.nano.parameters import Parameters
from examples.nano.pieces import Pieces


@dataclass(eq=False)
class IndexerTrace:
    """What the loss of one index source is made of: scores of the sampled rows, and who attended where.

    Attributes:
        scores: float32 ``[B, rows, E]``, -inf where an entry is not visible (or not selected).
        attended: float32 ``[B, rows, E]``, attention of all heads and layers that use the selection; no gradient.
    """

    scores: Tensor
    attended: Tensor


@dataclass(eq=False)
class BatchState:
    """What the layers of one forward pass hand to later layers."""

    rope: RopeTables
    sampled: Tensor
    """int64 ``[rows]`` positions whose index scores are trained in this pass; none: no indexer training."""
    sparse: bool
    """Whether layers attend to selected entries only."""
    pairs: bool = True
    """Whether layers of ratio 2 see their entries, or only their windows."""
    latent: Tensor | None = None
    entries: dict[int, Tensor] = field(default_factory=dict)
    index_keys: dict[int, Tensor] = field(default_factory=dict)
    selected: dict[int, Tensor] = field(default_factory=dict)
    """bool ``[B, T, E]`` by index source."""
    candidates: Tensor | None = None
    """bool ``[B, T, E]`` entries of the candidate blocks."""
    traces: dict[int, IndexerTrace] = field(default_factory=dict)


class BatchAttention:
    """The attention sub-layer; ``dtype`` is that of matrix products (float32, or bfloat16 for speed)."""

    def __init__(
        self, config: ModelConfig, parameters: Parameters, dtype: torch.dtype, pieces: Pieces
    ) -> None:
        self.text, self.parameters, self.dtype, self.pieces = config.text, parameters, dtype, pieces

    def __call__(self, x: Tensor, role: LayerRole, state: BatchState) -> Tensor:
        """Normalised rows ``x [B, T, D]`` to ``[B, T, D]``."""
        text, prefix = self.text, f"layers.{role.index}.attn"
        batch, length, _ = x.shape
        table = state.rope.for_layer(role)[:length]
        q_latent = self.norm(self.project(x, f"{prefix}.wq_a"), f"{prefix}.q_norm")
        q = self.project(q_latent, f"{prefix}.wq_b").view(batch, length, text.num_attention_heads, -1)
        q = self.rotate(q, table).to(self.dtype)
        window = self.norm(self.project(x, f"{prefix}.wkv"), f"{prefix}.kv_norm")
        window = self.rotate(window[:, :, None], table)[:, :, 0].to(self.dtype)
        entries = None
        if role.kv_source is not None and (state.pairs or role.ratio == 1):
            if role.is_kv_source:
                self.compress(x, role, state)
            entries = state.entries[role.kv_source].to(self.dtype)
            if role.is_index_source:
                self.index(x, q_latent, role, state)
        out, log_sum = self.attend(q, window, entries, role, state)
        if entries is not None and len(state.sampled):
            self.record(q, entries, log_sum, role, state)
        out = self.rotate(out, table, inverse=True).to(self.dtype)
        grouped = out.reshape(batch, length, text.o_groups, -1)
        matrix = (
            self.parameters[f"{prefix}.wo_a.weight"].to(self.dtype).view(text.o_groups, text.o_lora_rank, -1)
        )
        low_rank = torch.einsum("btgk,gnk->btgn", grouped, matrix).flatten(2)
        return self.project(low_rank, f"{prefix}.wo_b")

    def project(self, x: Tensor, name: str) -> Tensor:
        return x.to(self.dtype) @ self.parameters[f"{name}.weight"].to(self.dtype).T

    def norm(self, x: Tensor, name: str) -> Tensor:
        return self.pieces.rms_norm(x, self.parameters[f"{name}.weight"], self.text.rms_norm_eps)

    def rotate(self, x: Tensor, table: Tensor, inverse: bool = False) -> Tensor:
        return self.pieces.rotate(x, table, inverse)

    def compress(self, x: Tensor, role: LayerRole, state: BatchState) -> None:
        """Compressed entries ``[B, E, hd]`` of a KV source and the latents they come from (7)."""
        prefix = f"layers.{role.index}.attn.compressor"
        latent = self.project(x, f"{prefix}.wkv").float()
        if role.ratio == 2:
            batch, length, dim = latent.shape
            score = self.project(x, f"{prefix}.wgate").float().view(batch, length // 2, 2, dim)
            latent = (latent.view_as(score) * score.softmax(dim=2)).sum(dim=2)
        state.latent = self.norm(latent, f"{prefix}.norm")
        table = state.rope.for_layer(role)[: x.shape[1] : role.ratio]
        state.entries[role.index] = self.rotate(state.latent[:, :, None], table)[:, :, 0]

    def index(self, x: Tensor, q_latent: Tensor, role: LayerRole, state: BatchState) -> None:
        """Selection of an index source, and index scores of the sampled rows (8, 9).

        The indexer learns from its own loss alone: nothing of it reaches the trunk.
        """
        assert state.latent is not None
        assert role.index_k_source is not None
        prefix, table = f"layers.{role.index}.attn.indexer", state.rope.for_layer(role)
        if role.is_index_k_source:
            key = self.norm(self.project(state.latent.detach(), f"{prefix}.wk"), f"{prefix}.k_norm")
            state.index_keys[role.index] = self.rotate(key[:, :, None], table[: x.shape[1] : role.ratio])[
                :, :, 0
            ]
        keys = state.index_keys[role.index_k_source]
        x, q_latent = x.detach(), q_latent.detach()
        if state.sparse and keys.shape[1] > self.text.index_topk:
            with torch.no_grad():
                rows = torch.arange(x.shape[1])
                self.select(self.scores(x, q_latent, rows, keys, role, table), role, state)
        if len(state.sampled):
            rows = state.sampled
            scores = self.scores(x[:, rows], q_latent[:, rows], rows, keys, role, table)
            if role.index in state.selected:
                scores = scores.masked_fill(~state.selected[role.index][:, rows], -torch.inf)
            state.traces[role.index] = IndexerTrace(scores, torch.zeros_like(scores))

    def scores(
        self, x: Tensor, q_latent: Tensor, rows: Tensor, keys: Tensor, role: LayerRole, table: Tensor
    ) -> Tensor:
        """Index scores ``[B, rows, E]`` of the rows at positions ``rows``; -inf where not visible (8.4)."""
        text, prefix = self.text, f"layers.{role.index}.attn.indexer"
        q = self.project(q_latent, f"{prefix}.wq_b").view(*x.shape[:2], text.index_n_heads, -1)
        q = self.rotate(q, table[rows])
        factors = (
            self.project(x, f"{prefix}.weights_proj").float()
            * (text.index_head_dim * text.index_n_heads) ** -0.5
        )
        total = torch.zeros(*x.shape[:2], keys.shape[1])
        for head in range(text.index_n_heads):
            dots = q[:, :, head].to(self.dtype) @ keys.to(self.dtype).transpose(1, 2)
            total = total + torch.relu(dots).float() * factors[:, :, head, None]
        visible = torch.arange(keys.shape[1]) < ((rows + 1) // role.ratio)[:, None]
        return total.masked_fill(~visible, -torch.inf)

    def select(self, scores: Tensor, role: LayerRole, state: BatchState) -> None:
        """Entries of the ``index_topk`` best scores, within the candidate blocks behind their source (9)."""
        text = self.text
        if (
            role.candidate_source is not None
            and not role.is_candidate_source
            and state.candidates is not None
        ):
            scores = scores.masked_fill(~state.candidates, -torch.inf)
        state.selected[role.index] = best_of_each_row(scores, text.index_topk) & (scores > -torch.inf)
        size, count = text.candidate_block_size, -(-scores.shape[2] // text.candidate_block_size)
        if role.is_candidate_source and count > text.candidate_topk_blocks:
            whole = functional.pad(scores, (0, count * size - scores.shape[2]), value=-torch.inf)
            blocks = whole.view(*scores.shape[:2], count, size).amax(dim=3)
            last = torch.arange(scores.shape[1]) // role.ratio // size
            blocks.scatter_(2, last[None, :, None].expand(len(blocks), -1, -1), torch.inf)
            chosen = best_of_each_row(blocks, text.candidate_topk_blocks)
            state.candidates = chosen.repeat_interleave(size, dim=2)[:, :, : scores.shape[2]]

    def attend(
        self, q: Tensor, window: Tensor, entries: Tensor | None, role: LayerRole, state: BatchState
    ) -> tuple[Tensor, Tensor]:
        """Attention of ``q [B, T, H, hd]`` block by block; also the log-sum-exp ``[B, H, T]`` (10)."""
        size, length = self.text.sliding_window, q.shape[1]
        sink = self.parameters[f"layers.{role.index}.attn.attn_sink"]
        outputs, sums = [], []
        for start in range(0, length, size):
            stop, begin = min(start + size, length), max(0, start - size)
            rows = torch.arange(start, stop)[:, None]
            columns = torch.arange(begin, stop)
            mask = ((columns <= rows) & (columns > rows - size))[None]
            keys = window[:, begin:stop]
            if entries is not None:
                count = stop // role.ratio
                keys = torch.cat([keys, entries[:, :count]], dim=1)
                mask = self._with_entries(mask, rows, count, role, state)
            bias = torch.zeros(mask.shape, dtype=self.dtype).masked_fill_(~mask, -torch.inf)[:, None]
            block = q[:, start:stop].transpose(1, 2)
            out, log_sum = sink_attention(block, keys, sink, bias, self.text.head_dim**-0.5)
            outputs.append(out.transpose(1, 2))
            sums.append(log_sum)
        return torch.cat(outputs, dim=1), torch.cat(sums, dim=2)

    def _with_entries(
        self, mask: Tensor, rows: Tensor, count: int, role: LayerRole, state: BatchState
    ) -> Tensor:
        visible = (torch.arange(count) < (rows + 1) // role.ratio)[None]
        assert role.index_source is not None
        selected = state.selected.get(role.index_source)
        if selected is not None:
            visible = visible & selected[:, rows[:, 0], :count]
        return torch.cat([mask.expand(len(visible), -1, -1), visible], dim=2)

    @torch.no_grad()
    def record(self, q: Tensor, entries: Tensor, log_sum: Tensor, role: LayerRole, state: BatchState) -> None:
        """Add this layer's attention to entries, summed over heads, to the trace of its index source."""
        assert role.index_source is not None
        trace = state.traces[role.index_source]
        rows = state.sampled
        logits = torch.einsum("brhd,bed->bhre", q[:, rows], entries).float() * self.text.head_dim**-0.5
        probability = (logits - log_sum[:, :, rows, None]).exp_().sum(dim=1)
        trace.attended += probability.masked_fill_(trace.scores == -torch.inf, 0.0)


def best_of_each_row(scores: Tensor, count: int) -> Tensor:
    """Where the ``count`` greatest of the last dimension are, the lower index first among equals: bool."""
    last = scores.topk(count, dim=-1).values[..., -1:]
    above, equal = scores > last, scores == last
    return above | (equal & (equal.cumsum(dim=-1) <= count - above.sum(dim=-1, keepdim=True)))


def indexer_loss(traces: dict[int, IndexerTrace]) -> Tensor:
    """Divergence of the index scores' softmax from the attention they should predict, in nats per row.

    Each row weighs by how much attention its entries drew: a row that looks at its window only teaches nothing.
    """
    losses = []
    for trace in traces.values():
        seen = trace.attended.sum(dim=2, keepdim=True)
        target = trace.attended / seen.clamp(min=1e-6)
        scores = trace.scores.clamp(min=-1e4)
        log_target = torch.log(target.clamp(min=1e-9))
        divergence = (target * (log_target - functional.log_softmax(scores, dim=2))).sum(dim=2)
        losses.append((divergence * seen[..., 0]).sum() / seen.sum().clamp(min=1e-6))
    return torch.stack(losses).mean() if losses else torch.zeros(())
