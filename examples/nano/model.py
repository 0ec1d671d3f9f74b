"""nano over a batch of whole sequences, differentiable and fast enough to train on two CPU cores.

The formulas are those of ``di_model.reference``, which reads one sequence at a time; the tests hold the two equal.
Source: backbone specification, 1 to 6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from di_kernels.reference.engram import engram_hash, engram_windows
from di_model.config import ModelConfig
from di_model.engram_tables import EngramData
from di_model.rope import RopeTables
from di_model.topology import LayerRole
from torch import Tensor
from torch.nn import functional

from examples.nano.attention import BatchAttention, BatchState, indexer_loss
from examples.nano.functions import sinkhorn
from examples.nano.parameters import Parameters
from examples.nano.pieces import Pieces

PLAIN = Pieces()


@dataclass(frozen=True, eq=False)
class BatchOutput:
    """Result of one forward pass.

    Attributes:
        hidden: float32 ``[B, T, D]`` normalised output rows, input of :meth:`BatchModel.logits`.
        indexer_loss: scalar.
        expert_load: float32 ``[layers, E]``, share of the routed rows that each expert took.
    """

    hidden: Tensor
    indexer_loss: Tensor
    expert_load: Tensor


@dataclass(frozen=True, eq=False)
class Mixes:
    """Hyper-connection coefficients: ``pre``, ``post`` ``[rows, m]``, ``comb [rows, source, destination]``."""

    pre: Tensor
    post: Tensor
    comb: Tensor


class BatchModel:
    """The backbone from its parameters.

    Args:
        config: the model's configuration.
        parameters: tensors of :func:`~examples.nano.parameters.initial_parameters`.
        engram: derived hash constants.
        dtype: of matrix products: float32 is exact, bfloat16 several times as fast where the CPU has it.
        pieces: element-wise functions, plain or compiled.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        engram: EngramData,
        dtype: torch.dtype = torch.float32,
        pieces: Pieces = PLAIN,
    ) -> None:
        self.text, self.parameters, self.engram_data = config.text, parameters, engram
        self.dtype, self.pieces = dtype, pieces
        self.attention = BatchAttention(config, parameters, dtype, pieces)
        self.rope = RopeTables.build(config, self.text.max_position_embeddings)

    def forward(
        self, ids: Tensor, *, sparse: bool, sampled: Tensor | None = None, pairs: bool = True
    ) -> BatchOutput:
        """Normalised output rows of whole sequences.

        Args:
            ids: int64 ``[B, T]``; T is even.
            sparse: attend to selected entries only, as the engine does; False attends to all of them.
            sampled: int64 positions whose index scores enter ``indexer_loss``; none when None.
            pairs: False hides their entries from layers of ratio 2, which then see their windows only.
        """
        batch, length = ids.shape
        none = torch.empty(0, dtype=torch.long)
        state = BatchState(self.rope, none if sampled is None else sampled, sparse, pairs)
        embedded = functional.embedding(ids.flatten(), self.parameters["embed.weight"])
        stream = embedded[:, None].expand(-1, self.text.hc_mult, -1)
        pre = torch.eye(self.text.hc_mult)[0].expand(len(stream), -1)
        loads = []
        for role in self.text.layers:
            prefix = f"layers.{role.index}"
            if role.engram is not None:
                stream = self.engram(stream, ids, role)
            mixes = self.mixes(stream, f"{prefix}.hc_attn")
            x = self.input(stream, pre, f"{prefix}.attn_norm")
            y = self.attention(x.view(batch, length, -1), role, state).flatten(0, 1)
            stream, pre = self.pieces.hyper_post(stream, y, mixes.post, mixes.comb), mixes.pre
            mixes = self.mixes(stream, f"{prefix}.hc_ffn")
            x = self.input(stream, pre, f"{prefix}.ffn_norm")
            y, load = self.experts(x, f"{prefix}.ffn")
            stream, pre = self.pieces.hyper_post(stream, y, mixes.post, mixes.comb), mixes.pre
            loads.append(load)
        hidden = self.input(stream, pre, "norm")
        return BatchOutput(hidden.view(batch, length, -1), indexer_loss(state.traces), torch.stack(loads))

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits ``[rows, V]`` of rows ``[rows, D]``."""
        return self.project(hidden, "head").float()

    def project(self, x: Tensor, name: str) -> Tensor:
        return x.to(self.dtype) @ self.parameters[f"{name}.weight"].to(self.dtype).T

    def input(self, stream: Tensor, pre: Tensor, name: str) -> Tensor:
        """Normalised input of a sub-layer."""
        return self.pieces.hyper_input(stream, pre, self.parameters[f"{name}.weight"], self.text.rms_norm_eps)

    def mixes(self, stream: Tensor, prefix: str) -> Mixes:
        """Coefficients of a sub-layer from the trunk it finds (3.2)."""
        text, m = self.text, self.text.hc_mult
        fn, base, scale = (self.parameters[f"{prefix}_{part}"] for part in ("fn", "base", "scale"))
        u, rstd = self.pieces.hyper_operand(stream, self.dtype, text.rms_norm_eps)
        z = (u @ fn.to(self.dtype).T).float() * rstd
        pre = torch.sigmoid(z[:, :m] * scale[0] + base[:m]) + text.hc_eps
        post = torch.sigmoid(z[:, m : 2 * m] * scale[1] + base[m : 2 * m]) * 2.0
        mixing = (z[:, 2 * m :] * scale[2] + base[2 * m :]).T.reshape(m, m, -1)
        comb = sinkhorn(mixing, text.hc_eps, text.hc_sinkhorn_iters)
        # Products of small matrices are several times slower on a transposed one.
        return Mixes(pre, post, comb.permute(2, 0, 1).contiguous())

    def experts(self, x: Tensor, prefix: str) -> tuple[Tensor, Tensor]:
        """Routed and shared experts of rows ``[rows, D]``, and the load of each routed expert (4)."""
        text, k = self.text, self.text.num_experts_per_tok
        scores = functional.softplus(x @ self.parameters[f"{prefix}.gate.weight"].T).sqrt()
        ids = (scores.detach() + self.parameters[f"{prefix}.gate.bias"]).topk(k, dim=1).indices
        chosen = scores.gather(1, ids)
        weights = chosen / (chosen.sum(dim=1, keepdim=True) + 1e-20) * text.routed_scaling_factor
        order = ids.flatten().argsort(stable=True)
        counts = torch.bincount(ids.flatten(), minlength=text.n_routed_experts)
        rows = x.to(self.dtype)
        sorted_rows, sorted_weights = rows[order // k], weights.flatten()[order]
        sizes = counts.tolist()
        pieces = zip(torch.split(sorted_rows, sizes), torch.split(sorted_weights, sizes), strict=True)
        outputs = [self._expert(r, w, f"{prefix}.experts.{e}") for e, (r, w) in enumerate(pieces)]
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        routed = torch.cat(outputs)[back].view(len(x), k, -1).sum(dim=1)
        shared = self._expert(rows, None, f"{prefix}.shared_experts")
        return shared + routed, counts / counts.sum()

    def _expert(self, x: Tensor, weight: Tensor | None, name: str) -> Tensor:
        """One SwiGLU MLP, the routing weight applied before its last matrix (4.4, 4.5)."""
        gate, up = self.project(x, f"{name}.w1"), self.project(x, f"{name}.w3")
        activation = self.pieces.swiglu(gate, up, self.text.swiglu_limit)
        if weight is not None:
            activation = activation * weight[:, None].to(activation.dtype)
        return self.project(activation, f"{name}.w2")

    def engram(self, stream: Tensor, ids: Tensor, role: LayerRole) -> Tensor:
        """Trunk after the n-gram memory of a layer (5)."""
        assert role.engram is not None
        text, prefix = self.text, f"layers.{role.index}.engram"
        rows = self.engram_rows(ids, role.engram)
        features = functional.embedding(rows, self.parameters[f"{prefix}.embed.weight"]).flatten(1)
        kv = self.project(features, f"{prefix}.wkv").view(-1, text.hc_mult + 1, text.hidden_size)
        weight = self.parameters[f"{prefix}.q_weight"] * self.parameters[f"{prefix}.k_weight"]
        return self.pieces.engram_inject(stream, kv, weight, text.rms_norm_eps)

    def engram_rows(self, ids: Tensor, table: int) -> Tensor:
        """Table rows int64 ``[B*T, columns]`` of the n-grams that end at each token."""
        order = self.text.engram_max_ngram_size
        padded = functional.pad(ids, (order - 1, 0), value=-1)
        tokens = padded.unfold(1, order, 1).flip(2).flatten(0, 1)
        windows = engram_windows(tokens, self.engram_data.vocabulary, self.engram_data.pad)
        return engram_hash(windows, self.engram_data.tables[table].hash)
