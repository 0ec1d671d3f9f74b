"""The batched training model computes what the reference model computes, and its gradients are right."""

from __future__ import annotations

import pytest
import torch
from di_model.assemble import assemble
from di_model.config import ModelConfig
from di_model.engram_tables import derive_engram
from di_model.numerics import Numerics
from di_model.reference import ReferenceModel
from di_model.testing import tiny_config
from di_model.testing.tokenizer import tiny_tokenizer

from examples.nano.functions import sink_attention, sinkhorn
from examples.nano.model import BatchModel
from examples.nano.parameters import initial_parameters

TOLERANCE = 2e-4


def _models(seed: int) -> tuple[ModelConfig, BatchModel, ReferenceModel]:
    config = ModelConfig.from_dict(tiny_config(quantized=False))
    parameters = initial_parameters(config, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # away from the calm start, so that every part matters
        for name, tensor in parameters.items():
            if name.endswith(("_fn", "_scale", "_sink", ".bias")):
                tensor += 0.3 * torch.randn(tensor.shape, generator=generator)
            elif tensor.dim() == 2:
                tensor *= 3
    engram = derive_engram(config, tiny_tokenizer(config.text.vocab_size))
    assert engram is not None
    reference = ReferenceModel(config, assemble(config, parameters), engram, Numerics.FLOAT32)
    return config, BatchModel(config, parameters, engram), reference


@pytest.mark.parametrize("length", [2, 8, 40, 90, 96])
def test_logits_equal_the_reference(length: int) -> None:
    config, model, reference = _models(seed=length)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, config.text.vocab_size, (2, length), generator=generator)
    with torch.no_grad():
        output = model.forward(ids, sparse=True)
        for row in range(len(ids)):
            expected = reference.forward(ids[row]).logits
            torch.testing.assert_close(
                model.logits(output.hidden[row]), expected, atol=TOLERANCE, rtol=TOLERANCE
            )


def test_gradients_equal_the_reference() -> None:
    config, model, reference = _models(seed=3)
    ids = torch.randint(0, config.text.vocab_size, (1, 40), generator=torch.Generator().manual_seed(2))
    names = [n for n, t in model.parameters.items() if n.startswith("layers.") and "indexer" not in n]
    tensors = [model.parameters[name] for name in names]
    ours = torch.autograd.grad(
        model.logits(model.forward(ids, sparse=True).hidden[0]).square().sum(), tensors, allow_unused=True
    )
    theirs = torch.autograd.grad(reference.forward(ids[0]).logits.square().sum(), tensors, allow_unused=True)
    for name, a, b in zip(names, ours, theirs, strict=True):
        if a is None or b is None:  # an expert that no row chose
            assert all(g is None or not g.any() for g in (a, b)), name
        else:
            assert (a - b).norm() <= 1e-3 * b.norm() + 1e-6, name


def test_attending_to_everything_differs_once_the_selection_is_limited() -> None:
    config, model, _ = _models(seed=4)
    ids = torch.randint(0, config.text.vocab_size, (1, 96), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        sparse, dense = (model.forward(ids, sparse=s).hidden[0] for s in (True, False))
    few = config.text.index_topk  # positions with no more entries than that see all of them
    torch.testing.assert_close(sparse[:few], dense[:few])
    assert (sparse[-1] - dense[-1]).abs().max() > 1e-3


def test_indexer_learns_from_its_own_loss_only() -> None:
    config, model, _ = _models(seed=5)
    ids = torch.randint(0, config.text.vocab_size, (1, 40), generator=torch.Generator().manual_seed(2))
    loss = model.forward(ids, sparse=True, sampled=torch.arange(8, 40, 3)).indexer_loss
    assert loss > 0
    loss.backward()
    with_gradient = {name for name, tensor in model.parameters.items() if tensor.grad is not None}
    assert with_gradient
    assert all(".indexer." in name for name in with_gradient)


def test_sinkhorn_and_sink_attention_have_the_gradients_of_their_formulas() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, 1e-6, 5), (logits,))

    q = torch.randn(1, 2, 5, 8, generator=generator, requires_grad=True)
    keys = torch.randn(1, 7, 8, generator=generator, requires_grad=True)
    sink = torch.randn(2, generator=generator, requires_grad=True)
    mask = torch.zeros(1, 1, 5, 7)
    mask[..., 3, 2:] = -torch.inf
    out, _ = sink_attention(q, keys, sink, mask, 0.3)
    scores = torch.einsum("bhrd,bnd->bhrn", q, keys) * 0.3 + mask
    joined = torch.cat([scores, sink[None, :, None, None].expand(1, 2, 5, 1)], dim=3).softmax(dim=3)
    expected = torch.einsum("bhrn,bnd->bhrd", joined[..., :-1], keys)
    torch.testing.assert_close(out, expected)
    weights = torch.randn(out.shape, generator=generator)
    ours = torch.autograd.grad((out * weights).sum(), (q, keys, sink))
    theirs = torch.autograd.grad((expected * weights).sum(), (q, keys, sink))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_layers_of_ratio_two_can_be_kept_to_their_windows() -> None:
    config, model, _ = _models(seed=6)
    ids = torch.randint(0, config.text.vocab_size, (1, 40), generator=torch.Generator().manual_seed(2))
    model.forward(ids, sparse=True, pairs=False).hidden.sum().backward()
    for role in config.text.layers:
        if role.is_kv_source:
            gradient = model.parameters[f"layers.{role.index}.attn.compressor.wkv.weight"].grad
            assert (gradient is None) == (role.ratio == 2)
