"""The draft block: context keys from backbone features, three layers, Markov head (backbone specification, 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from di_kernels.reference.embedding import embed
from di_kernels.reference.hyper import hyper_post, hyper_pre
from di_kernels.reference.linear import linear
from torch import Tensor

from di_model.reference.attention import attend, window_keys
from di_model.reference.state import Setting
from di_model.rope import RopeTables
from di_model.topology import LayerRole
from di_model.trace import ignore
from di_model.weights import AttentionWeights, DraftWeights

if TYPE_CHECKING:
    from di_model.reference.model import ReferenceModel


@dataclass(frozen=True, eq=False)
class DraftOutput:
    """A drafted block of ``n`` tokens.

    Attributes:
        tokens: int32 ``[n]``, the greedy choice behind each block position.
        logits: float32 ``[n, V]`` with the Markov term.
        confidence: float32 ``[n]`` raw confidence, before the sigmoid.
    """

    tokens: Tensor
    logits: Tensor
    confidence: Tensor


def draft_block(
    model: ReferenceModel, features: Tensor, token: int, position: int, length: int
) -> DraftOutput:
    """See :meth:`di_model.reference.model.ReferenceModel.draft`."""
    weights = model.weights.draft
    if weights is None:
        raise ValueError("the weights hold no draft model; load the checkpoint with draft=True")
    if not 1 <= position <= len(features):
        raise ValueError(f"position is {position}; features reach positions 0..{len(features) - 1} before it")
    if length < 1:
        raise ValueError(f"length is {length}; it must be at least 1")
    setting, text = model.setting, model.config.text
    begin = max(0, position - text.sliding_window)
    context = setting.norm(setting.project(features[begin:position], weights.main_proj), weights.main_norm)
    positions = torch.arange(begin, position + length, dtype=torch.int32)
    rope = RopeTables.build(model.config, position + length)

    ids = torch.full((length,), text.dspark_noise_token_id, dtype=torch.int32)
    ids[0] = token
    stream, pre = model.expand(embed(ids, model.weights.embed, setting.numerics.dtype))
    for role, layer in zip(text.draft_layers, weights.layers, strict=True):
        mixes = model.mixes(stream, layer.hc_attn)
        x = setting.norm(hyper_pre(stream, pre), layer.attn_norm)
        y = _attention(x, context, positions, role, layer.attn, rope, setting)
        stream, pre = hyper_post(stream, y, mixes), mixes.pre
        mixes = model.mixes(stream, layer.hc_ffn)
        x = setting.norm(hyper_pre(stream, pre), layer.ffn_norm)
        y = model.experts(x, layer.moe, text.dspark_num_experts_per_tok, role.index, ignore)
        stream, pre = hyper_post(stream, y, mixes), mixes.pre
    return _choose(model, weights, hyper_pre(stream, pre), token)


def _attention(
    x: Tensor,
    context: Tensor,
    positions: Tensor,
    role: LayerRole,
    weights: AttentionWeights,
    rope: RopeTables,
    setting: Setting,
) -> Tensor:
    """Every row sees all context rows and the whole block, both ways (attention specification, 14.2)."""
    table = rope.for_layer(role)
    keys = window_keys(torch.cat([context, x]), positions, weights, table, setting)
    columns = torch.arange(len(keys), dtype=torch.int32).expand(len(x), -1)
    q_latent = setting.norm(setting.project(x, weights.wq_a), weights.q_norm)
    return attend(q_latent, positions[len(context) :], keys, columns, weights, table, setting)


def _choose(model: ReferenceModel, weights: DraftWeights, hidden: Tensor, token: int) -> DraftOutput:
    """Greedy tokens one after another; only the Markov term depends on the tokens before (8.4)."""
    base = model.logits(model.setting.norm(hidden, weights.norm))
    previous = torch.tensor([token], dtype=torch.int32)
    tokens, logits, confidence = [], [], []
    for i in range(len(hidden)):
        markov = embed(previous, weights.markov_embed, hidden.dtype)
        row = base[i : i + 1] + linear(markov, weights.markov_head, False, torch.float32)
        joined = torch.cat([hidden[i : i + 1], markov], dim=1)
        confidence.append(linear(joined, weights.confidence, False, torch.float32)[0])
        previous = row.argmax(dim=1).to(torch.int32)
        tokens.append(previous)
        logits.append(row)
    return DraftOutput(torch.cat(tokens), torch.cat(logits), torch.cat(confidence))
