"""Sampling operations: every backend against the reference bit for bit, and both against their
definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from di_kernels import instruction_sets, set_instruction_set
from di_kernels.ops import sampling as ops
from di_kernels.ops.sampling import DrawPurpose
from di_kernels.reference import sampling as reference
from di_kernels.testing import (
    Hostile,
    assert_same_bits,
    assert_same_values,
    device_backends,
    hostile,
    threads,
    with_gaps,
    with_row_gaps,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

BACKENDS = device_backends("sampling")
VOCAB_SIZES = (1, 2, 3, 31, 32, 33, 513)
INF = math.inf


def parameters(rows: int, seed: int = 0) -> dict[str, Tensor]:
    """Every combination of filters over the rows, greedy rows included."""
    generator = torch.Generator().manual_seed(seed)

    def choose(values: list[float], dtype: torch.dtype) -> Tensor:
        index = torch.randint(0, len(values), (rows,), generator=generator)
        return torch.tensor(values, dtype=dtype)[index]

    return {
        "temperature": choose([0.0, 1e-5, 0.3, 1.0, 5.0, 1e6], torch.float64),
        "top_k": choose([-1, 0, 1, 2, 7, 40, 10**6], torch.int64),
        "top_p": choose([1e-9, 0.1, 0.5, 0.9, 0.999999, 1.0, 1.0], torch.float64),
        "min_p": choose([0.0, 0.0, 1e-4, 0.2, 1.0], torch.float64),
        "seeds": torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator),
        "positions": torch.randint(0, 2**40, (rows,), generator=generator),
    }


def sample_one(logits: list[float], seed: int = 0, position: int = 0, **changes: float) -> int:
    values = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0} | changes
    tensors = {name: torch.tensor([value], dtype=torch.float64) for name, value in values.items()}
    tensors["top_k"] = torch.tensor([int(values.get("top_k", -1))])
    streams = {"seeds": torch.tensor([seed]), "positions": torch.tensor([position])}
    return int(ops.sample(torch.tensor([logits]), **tensors, **streams))


def support(logits: list[float], draws: int = 300, **changes: float) -> set[int]:
    return {sample_one(logits, seed=seed, **changes) for seed in range(draws)}


# ---- every backend against the reference ---------------------------------------------------------


@pytest.mark.parametrize("vocab", VOCAB_SIZES)
@pytest.mark.parametrize("rows", [0, 1, 9])
@pytest.mark.parametrize("kind", Hostile)
@pytest.mark.parametrize("device", BACKENDS)
def test_matches_reference(device: str, kind: Hostile, rows: int, vocab: int) -> None:
    logits = hostile(kind, rows, vocab, seed=vocab)
    x = logits.to(device)
    ids = torch.arange(rows) * 5 % vocab
    given = parameters(rows, seed=vocab)
    k = min(vocab, 20)
    for name in ("all_finite", "argmax", "log_softmax"):
        assert_same_values(getattr(ops, name)(x).cpu(), getattr(reference, name)(logits))
    for actual, expected in zip(
        ops.describe_tokens(x, ids.to(device), k), reference.describe_tokens(logits, ids, k), strict=True
    ):
        assert_same_values(actual.cpu(), expected)
    drawn = ops.sample(x, **{name: value.to(device) for name, value in given.items()})
    assert_same_bits(drawn.cpu(), reference.sample(logits, **given))


@pytest.mark.parametrize("device", BACKENDS)
def test_matches_reference_at_full_vocabulary(device: str) -> None:
    logits = torch.cat([hostile(Hostile.OUTLIERS, 4, 129280), hostile(Hostile.TIES, 4, 129280)])
    given = parameters(8, seed=3) | {"temperature": torch.linspace(0.1, 2.0, 8, dtype=torch.float64)}
    drawn = ops.sample(logits.to(device), **{name: value.to(device) for name, value in given.items()})
    assert_same_bits(drawn.cpu(), reference.sample(logits, **given))
    assert_same_bits(ops.log_softmax(logits.to(device)).cpu(), reference.log_softmax(logits))
    ids = torch.arange(8) * 16_000
    for actual, expected in zip(
        ops.describe_tokens(logits.to(device), ids.to(device), 1000),
        reference.describe_tokens(logits, ids, 1000),
        strict=True,
    ):
        assert_same_bits(actual.cpu(), expected)


@pytest.mark.parametrize("device", BACKENDS)
@pytest.mark.parametrize("spread", [0.01, 1.0, 20.0])
def test_top_p_of_flat_and_of_peaked_rows(device: str, spread: float) -> None:
    """From nearly all columns down to a few are needed; every fifth column equals another one."""
    logits = torch.randn(4, 20000, generator=torch.Generator().manual_seed(1)) * spread
    logits[:, ::5] = logits[:, 1::5]
    given = parameters(4) | {
        "temperature": torch.ones(4, dtype=torch.float64),
        "top_k": torch.tensor([0, 0, 9000, 3]),
        "top_p": torch.tensor([0.999, 0.5, 0.9, 0.9], dtype=torch.float64),
        "min_p": torch.tensor([0.0, 0.0, 0.0, 0.5], dtype=torch.float64),
    }
    for seed in range(5):
        given["seeds"] = torch.arange(4) + 4 * seed
        drawn = ops.sample(logits.to(device), **{name: value.to(device) for name, value in given.items()})
        assert_same_bits(drawn.cpu(), reference.sample(logits, **given))


@pytest.mark.parametrize(
    "special", [[-INF], [-INF, -INF], [INF, 0.0], [-INF, 2.0], [math.nan], [0.0, math.nan, INF]]
)
def test_rows_without_a_distribution(special: list[float]) -> None:
    logits = torch.tensor([special])
    drawable = not any(math.isnan(x) or x == INF for x in special) and max(special) > -INF
    for module in (ops, reference):
        assert (int(module.argmax(logits)) >= 0) == drawable
        assert bool(module.log_softmax(logits).isnan().all()) != drawable
    assert (sample_one(special) >= 0) == drawable
    assert (sample_one(special, temperature=0.0) >= 0) == drawable
    assert not bool(ops.all_finite(logits))


@pytest.mark.parametrize("layout", [with_gaps, with_row_gaps, lambda x: x.t().contiguous().t()])
def test_strided_logits(layout: object) -> None:
    logits = hostile(Hostile.NORMAL, 5, 33)
    strided = layout(logits)  # type: ignore[operator]
    given = parameters(5)
    assert_same_bits(ops.log_softmax(strided), reference.log_softmax(logits))
    assert_same_bits(ops.sample(strided, **given), reference.sample(logits, **given))
    for actual, expected in zip(
        ops.describe_tokens(strided, torch.arange(5), 3),
        reference.describe_tokens(logits, torch.arange(5), 3),
        strict=True,
    ):
        assert_same_bits(actual, expected)


@pytest.mark.parametrize("vocab", [33, 513, 4097])
def test_bits_do_not_depend_on_threads_or_neighbours(vocab: int) -> None:
    logits, given = hostile(Hostile.OUTLIERS, 17, vocab), parameters(17)
    with threads(1):
        alone = [
            (
                ops.sample(logits[r : r + 1], **{name: value[r : r + 1] for name, value in given.items()}),
                ops.log_softmax(logits[r : r + 1]),
            )
            for r in range(17)
        ]
    for count in (1, 2, 5):
        with threads(count):
            assert_same_bits(ops.sample(logits, **given), torch.cat([tokens for tokens, _ in alone]))
            assert_same_bits(ops.log_softmax(logits), torch.cat([logprobs for _, logprobs in alone]))


@pytest.mark.parametrize("kind", [Hostile.NORMAL, Hostile.OUTLIERS, Hostile.TIES])
@pytest.mark.parametrize("vocab", [1, 17, 1000, 5000])
def test_every_instruction_set_gives_the_same_bits(kind: Hostile, vocab: int) -> None:
    logits, given = hostile(kind, 9, vocab, seed=vocab), parameters(9, seed=vocab)
    packed = ops.pack_parameters(**{name: value for name, value in given.items() if name != "positions"})
    ids, words = torch.arange(9) % vocab, bitmask(9, vocab)
    results = []
    try:
        for name in instruction_sets():
            set_instruction_set(name)
            masked = logits.clone()
            ops.apply_bitmask(masked, words)
            results.append(
                [
                    *ops.choose(logits, packed, given["positions"]),
                    *ops.describe_tokens(logits, ids, min(vocab, 5)),
                    ops.log_softmax(logits),
                    ops.argmax(logits),
                    ops.all_finite(masked),
                    masked,
                ]
            )
    finally:
        set_instruction_set(instruction_sets()[-1])
    for result in results[1:]:
        for actual, expected in zip(result, results[0], strict=True):
            assert_same_values(actual, expected)


# ---- packed parameters, chosen rows ----------------------------------------------------------------


@pytest.mark.parametrize("device", BACKENDS)
@pytest.mark.parametrize("kind", Hostile)
def test_choose_is_sample_and_all_finite(device: str, kind: Hostile) -> None:
    logits, given = hostile(kind, 6, 40).to(device), parameters(6, seed=1)
    packed = ops.pack_parameters(**{name: value for name, value in given.items() if name != "positions"})
    tokens, finite = ops.choose(logits, packed.to(device), given["positions"].to(device))
    assert_same_bits(tokens.cpu(), reference.sample(logits.cpu(), **given))
    assert_same_bits(finite.cpu(), reference.all_finite(logits.cpu()))
    rows = torch.tensor([4, 0, 4])
    part = (logits, packed[rows].to(device), given["positions"][rows].to(device))
    for actual, expected in zip(ops.choose(*part, rows.to(device)), (tokens, finite), strict=True):
        assert_same_bits(actual.cpu(), expected[rows].cpu())
    for actual, expected in zip(
        reference.choose(logits.cpu(), packed, given["positions"]), (tokens, finite), strict=True
    ):
        assert_same_bits(actual, expected.cpu())


def test_packed_parameters_have_the_layout_of_the_record() -> None:
    given = parameters(3)
    packed = ops.pack_parameters(**{name: value for name, value in given.items() if name != "positions"})
    records = packed.numpy().view(ops.PARAMETERS)[:, 0]
    for field, name in zip(
        ops.PARAMETERS.names or (), ("temperature", "top_p", "min_p", "top_k", "seeds"), strict=True
    ):
        assert records[field].view(np.int64).tolist() == given[name].view(torch.int64).tolist()


def test_described_tokens_by_hand() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, -INF], [0.0, -0.0, math.nan, 5.0]])
    logprobs, ranks, best, values = ops.describe_tokens(logits, torch.tensor([2, 0]), 2)
    assert ranks[0] == 2
    assert best[0].tolist() == [1, 2]
    expected = torch.log_softmax(logits[0].double(), 0)
    torch.testing.assert_close(values[0].double(), expected[[1, 2]])
    torch.testing.assert_close(logprobs[0].double(), expected[2])
    assert bool(logprobs[1].isnan())
    assert bool(values[1].isnan().all())
    assert [part.shape for part in ops.describe_tokens(logits, ranks, 0)] == [(2,), (2,), (2, 0), (2, 0)]


# ---- bitmask ---------------------------------------------------------------------------------------


def bitmask(rows: int, vocab: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**31), 2**31, (rows, (vocab + 31) // 32), generator=generator)
    return words.to(torch.int32)


@pytest.mark.parametrize("vocab", [1, 15, 16, 31, 32, 33, 64, 1000])
@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("device", BACKENDS)
def test_bitmask_matches_reference(device: str, rows: int, vocab: int) -> None:
    logits, words = hostile(Hostile.OUTLIERS, rows, vocab), bitmask(rows, vocab)
    expected = logits.clone()
    reference.apply_bitmask(expected, words)
    for mask in (words, words.view(torch.uint32)):
        actual = logits.clone().to(device)
        ops.apply_bitmask(actual, mask.to(device))
        assert_same_bits(actual.cpu(), expected)
    columns = np.arange(vocab)
    for row in range(rows):
        allowed = words[row].numpy()[columns // 32] >> (columns % 32) & 1
        assert [x == -INF for x in expected[row].tolist()] == [bit == 0 for bit in allowed.tolist()]


@pytest.mark.parametrize("count", [1, 2])
def test_bitmask_of_some_rows_and_of_strided_logits(count: int) -> None:
    logits, words = hostile(Hostile.NORMAL, 6, 75), bitmask(3, 75)
    expected = logits.clone()
    reference.apply_bitmask(expected, words, torch.tensor([0, 2, 5]))
    strided = with_row_gaps(logits)
    with threads(count):
        ops.apply_bitmask(strided, with_row_gaps(words), torch.tensor([0, 2, 5]))
    assert_same_bits(strided, expected)
    assert_same_bits(expected[[1, 3, 4]], logits[[1, 3, 4]])


def test_rows_that_share_memory_are_not_edited() -> None:
    logits = torch.zeros(75).expand(3, 75)
    with pytest.raises(ValueError, match="rows of logits share memory"):
        ops.apply_bitmask(logits, bitmask(3, 75))
    overlapping = torch.zeros(200).as_strided((3, 75), (10, 1))
    with pytest.raises(ValueError, match="rows of logits share memory"):
        ops.apply_bitmask(overlapping, bitmask(3, 75))
    assert torch.equal(logits, torch.zeros(3, 75))


# ---- penalties and bias --------------------------------------------------------------------------


@pytest.mark.parametrize("device", BACKENDS)
@pytest.mark.parametrize("kind", list(Hostile))
def test_edits_match_reference(device: str, kind: Hostile) -> None:
    logits = hostile(kind, 4, 33)
    starts = torch.tensor([0, 3, 3, 8, 9])
    ids = torch.tensor([0, 32, 7, 1, 2, 3, 31, 30, 32])
    counts = torch.tensor([0, 1, 5, 0, 2, 0, 1, 1000, 1], dtype=torch.int32)
    factors = torch.tensor([[1.3, 1.0, 0.5, 2.0], [0.5, 0.0, -2.0, 0.1], [0.7, 0.0, 2.0, -1.1]])
    values = torch.tensor([1.5, -INF, 0.0, -100.0, 100.0, 1e-9, -0.0, 3.0, -INF])
    expected, actual = logits.clone(), logits.clone().to(device)
    reference.apply_penalties(expected, starts, ids, counts, *factors)
    reference.apply_bias(expected, starts, ids, values)
    where = (starts.to(device), ids.to(device))
    ops.apply_penalties(actual, *where, counts.to(device), *factors.to(device))
    ops.apply_bias(actual, *where, values.to(device))
    assert_same_values(actual.cpu(), expected)


def test_penalty_formula_and_untouched_columns() -> None:
    logits = with_row_gaps(torch.tensor([[2.0, -2.0, 4.0, 1.0]]))
    factors = [torch.tensor([value]) for value in (2.0, 0.25, 0.5)]
    counts = torch.tensor([0, 1, 3], dtype=torch.int32)
    ops.apply_penalties(logits, torch.tensor([0, 3]), torch.tensor([0, 1, 2]), counts, *factors)
    assert logits.tolist() == [[1.0, -4.0 - 0.5 - 0.25, 2.0 - 1.5 - 0.25, 1.0]]


# ---- definitions ---------------------------------------------------------------------------------


def test_philox_known_answers() -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    first = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert ops.philox(zero, zero, DrawPurpose.FRESH, 4).tolist() == [first]
    assert (
        ops.philox(zero, zero, DrawPurpose.FRESH, 4).tolist() == reference.philox(zero, zero, 0, 4).tolist()
    )
    seeds, positions = torch.tensor([-1, 2**62 + 12345, 7]), torch.tensor([0, 2**41, 999])
    for purpose in DrawPurpose:
        assert_same_bits(
            ops.philox(seeds, positions, purpose, 11), reference.philox(seeds, positions, purpose, 11)
        )
    # All-ones key and counter (the published vector): the generator itself, below the stream convention.
    assert reference._philox_block(2**64 - 1, 2**128 - 1) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


def test_streams_of_positions_and_purposes_are_apart() -> None:
    seeds, positions = torch.zeros(50, dtype=torch.int64), torch.arange(50)
    streams = torch.cat([ops.philox(seeds, positions, purpose, 2) for purpose in DrawPurpose])
    assert len({tuple(row) for row in streams.tolist()}) == 150


def test_log_softmax_against_float64() -> None:
    logits = hostile(Hostile.OUTLIERS, 6, 1000)
    expected = torch.log_softmax(logits.to(torch.float64), dim=1)
    error = (ops.log_softmax(logits).to(torch.float64) - expected).abs()
    # Rounded once to float32, and what float32 exponentials of all columns but the largest lose.
    others = 1.0 - expected.max(dim=1, keepdim=True).values.exp()
    assert bool((error <= 6e-8 * expected.abs() + 2e-7 * others + 1e-12).all())


def test_exponential_and_logarithm_are_accurate() -> None:
    x = -np.linspace(0.0, 87.0, 20001, dtype=np.float32)
    assert np.max(np.abs(reference._exp(x) / np.exp(x.astype(np.float64)) - 1.0)) < 1.5e-7
    ends = np.array([0.0, -0.0, -104.0, -INF], dtype=np.float32)
    assert reference._exp(ends).tolist() == [1.0, 1.0, 0.0, 0.0]
    for value in (1.0, 1.0 + 2**-52, 1.5, 2.0, 129280.0, 1e300):
        assert abs(reference._log(value) - math.log(value)) <= 5e-16 * max(1.0, math.log(value))


def test_ties_go_to_the_lowest_column() -> None:
    logits = torch.tensor([[0.0, 3.0, -0.0, 3.0, 0.0]])
    assert ops.argmax(logits).tolist() == [1]
    described = [ops.describe_tokens(logits, torch.tensor([column]), 5) for column in range(5)]
    assert [ranks.tolist() for _, ranks, _, _ in described] == [[3], [1], [4], [2], [5]]
    assert described[0][2].tolist() == [[1, 3, 0, 2, 4]]
    assert ops.argmax(torch.tensor([[-0.0, 0.0]])).tolist() == [0]


def test_top_p_keeps_the_shortest_prefix_that_reaches_the_mass() -> None:
    assert support([0.0] * 4, top_p=0.5) == {0, 1}
    assert support([0.0] * 4, top_p=0.500001) == {0, 1, 2}
    assert support([0.0] * 10, top_p=0.8) == set(range(8))
    assert support([0.0, 5.0, 1.0], top_p=1e-12) == {1}


def test_top_k_and_top_p_look_at_the_same_distribution() -> None:
    # Probabilities 0.4 0.3 0.2 0.1: the prefix that reaches 0.75 has three columns, not the two that a
    # renormalisation after top_k=3 would leave at 0.75 of 0.9 = 0.675.
    logits = [math.log(p) for p in (0.2, 0.4, 0.1, 0.3)]
    assert support(logits, top_p=0.75) == {0, 1, 3}
    assert support(logits, top_p=0.75, top_k=2) == {1, 3}
    assert support(logits, top_p=0.75, top_k=3) == {0, 1, 3}
    assert support(logits, top_k=0) == {0, 1, 2, 3}


def test_a_cut_far_below_the_most_probable_column() -> None:
    """Columns within a distance of 8 are counted first; here there is one, and the others have as much mass."""
    rows, far = 64, 20_000
    logits = -8.0 - 6.0 * torch.rand(rows, far, generator=torch.Generator().manual_seed(1))
    logits[:, 77] = 0
    settings = {
        "temperature": torch.ones(rows, dtype=torch.float64),
        "top_k": torch.tensor([-1, 12, 500, 9000]).repeat(16),
        "top_p": torch.tensor([0.6, 0.9, 0.999, 1.0], dtype=torch.float64).repeat_interleave(16),
        "min_p": torch.zeros(rows, dtype=torch.float64),
        "seeds": torch.arange(rows),
        "positions": torch.zeros(rows, dtype=torch.int64),
    }
    drawn = ops.sample(logits, **settings)
    assert torch.equal(drawn, reference.sample(logits, **settings))
    assert int((logits.gather(1, drawn[:, None]) < -8).sum()) > 10


def test_min_p_is_relative_to_the_most_probable_column() -> None:
    logits = [math.log(p) for p in (0.5, 0.26, 0.24)]
    assert support(logits, min_p=0.5) == {0, 1}
    assert support(logits, min_p=1.0) == {0}
    assert support([1.0, 1.0, 0.0], min_p=1.0) == {0, 1}


def test_forbidden_columns_are_never_drawn() -> None:
    assert support([-INF, 0.0, -INF, 0.0], temperature=1e6) == {1, 3}
    assert support([-INF, 0.0, -INF], top_k=2) == {1}


def test_greedy_threshold() -> None:
    assert support([0.0, 1e-6, 0.0], draws=20, temperature=9e-6) == {1}
    assert support([0.0, 1e-6, 0.0], draws=50, temperature=1e-5) == {0, 1, 2}


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03], dtype=torch.float64)
    count = 20000
    logits = probabilities.log().to(torch.float32).expand(count, 5).contiguous()
    plain = torch.ones(count, dtype=torch.float64)
    tokens = ops.sample(
        logits,
        plain,
        torch.full((count,), -1),
        plain,
        plain * 0,
        torch.full((count,), 11),
        torch.arange(count),
    )
    seen = torch.bincount(tokens, minlength=5)
    expected = probabilities * count
    assert float(((seen - expected) ** 2 / expected).sum()) < 23.5  # chi-square, 4 degrees, p = 1e-4


@settings(max_examples=60)
@given(
    logits=st.lists(st.sampled_from([-3.0, -1.0, 0.0, -0.0, 0.5, 2.0, 2.0, 9.0]), min_size=1, max_size=20),
    top_k=st.integers(-1, 21),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
    temperature=st.floats(0.05, 20.0),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_drawn_column_is_allowed_by_definition(
    logits: list[float], top_k: int, top_p: float, min_p: float, temperature: float, seed: int
) -> None:
    token = sample_one(logits, seed, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    order = sorted(range(len(logits)), key=lambda column: (-logits[column], column))
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    rank = order.index(token)
    before = sum(weights[column] for column in order[:rank]) / sum(weights)
    assert not 1 <= top_k <= rank
    assert rank == 0 or before < top_p * (1 + 1e-5)  # the weights of the contract are float32
    assert weights[token] >= min_p * (1 - 1e-5) - 2.0**-31


def test_a_draw_hardly_moves_with_the_logits() -> None:
    """Another machine's last bits must not choose another token for the same seed."""
    logits = 3.0 * torch.randn(1, 1000, generator=torch.Generator().manual_seed(4))
    count = 300
    given = parameters(count) | {
        "temperature": torch.ones(count, dtype=torch.float64),
        "top_k": torch.zeros(count, dtype=torch.int64),
        "min_p": torch.zeros(count, dtype=torch.float64),
        "top_p": torch.full((count,), 0.99, dtype=torch.float64),
    }
    drawn, moved = (ops.sample(x.expand(count, 1000), **given) for x in (logits, logits * (1 + 2**-22)))
    assert int((drawn != moved).sum()) <= 1


# ---- errors --------------------------------------------------------------------------------------


def test_bad_arguments_are_named() -> None:
    logits, given = torch.zeros(2, 4), parameters(2)
    with pytest.raises(TypeError, match="logits has dtype"):
        ops.argmax(logits.to(torch.bfloat16))
    with pytest.raises(ValueError, match="0 columns"):
        ops.argmax(torch.zeros(2, 0))
    with pytest.raises(ValueError, match=r"ids spans 0\.\.4; allowed: 0\.\.3"):
        ops.describe_tokens(logits, torch.tensor([0, 4]), 1)
    with pytest.raises(ValueError, match="k is 5"):
        ops.describe_tokens(logits, torch.tensor([0, 3]), 5)
    with pytest.raises(ValueError, match="positions must not be negative"):
        ops.sample(logits, **given | {"positions": torch.tensor([0, -1])})
    for name, bad in (("temperature", math.nan), ("temperature", -1.0), ("top_p", 0.0), ("min_p", 1.5)):
        with pytest.raises(ValueError, match=f"{name} holds"):
            ops.sample(logits, **given | {name: torch.tensor([0.5, bad], dtype=torch.float64)})
    with pytest.raises(ValueError, match="bitmask has shape"):
        ops.apply_bitmask(logits, torch.zeros(2, 2, dtype=torch.int32))
    with pytest.raises(ValueError, match="rows must be distinct and ascending"):
        ops.apply_bitmask(logits, torch.zeros(2, 1, dtype=torch.int32), torch.tensor([1, 1]))
    packed = ops.pack_parameters(
        *(given[name] for name in ("temperature", "top_k", "top_p", "min_p", "seeds"))
    )
    with pytest.raises(ValueError, match=r"rows\[1\] is 2; allowed: 0 to 1"):
        ops.choose(logits, packed, given["positions"], torch.tensor([0, 2]))
    with pytest.raises(ValueError, match=r"positions\[0\] is -"):
        ops.choose(logits, packed, given["positions"] - 2**41)
    with pytest.raises(ValueError, match=r"temperature of row 0 is -?nan; allowed: finite, 0 or more"):
        ops.choose(logits, torch.full_like(packed, 255), given["positions"])
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="row_starts"):
        ops.apply_bias(logits, torch.tensor([0, 2, 1]), one, torch.zeros(1))
    with pytest.raises(ValueError, match="contiguous"):
        ops.apply_bias(with_gaps(logits), torch.tensor([0, 1, 1]), one, torch.zeros(1))


def test_parameters_may_carry_gradients() -> None:
    given = parameters(3)
    expected = ops.sample(torch.zeros(3, 8), **given)
    learnt = {name: v.clone().requires_grad_() if v.is_floating_point() else v for name, v in given.items()}
    assert_same_bits(ops.sample(torch.zeros(3, 8), **learnt), expected)


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p", "seeds"])
def test_only_tensors_of_parameters_are_packed(name: str) -> None:
    given = {field: value for field, value in parameters(3).items() if field != "positions"}
    wrongs: list[tuple[type[Exception], object, str]] = [
        (TypeError, [1.0], r"is \[1\.0\]; it must be of type Tensor"),
        (TypeError, given[name].float(), r"has dtype torch\.float32; allowed: torch\.(float|int)64"),
        (ValueError, given[name][None], r"has shape \[1, 3\]; expected \[\w+\]"),
        (ValueError, given[name].to_sparse(), r"has layout torch\.sparse_coo; allowed: torch\.strided"),
        (ValueError, given[name].to("meta"), r"is on device meta; it must be on a device that keeps values"),
    ]
    for error, wrong, message in wrongs:
        with pytest.raises(error, match=rf"^{name} {message}$"):
            ops.pack_parameters(**{**given, name: wrong})
