"""Codes and scales, bit for bit: worked examples, golden values, and the reference on hostile values."""

from __future__ import annotations

import pytest
import torch
from di_kernels import instruction_sets
from di_kernels.ops import formats
from di_kernels.ops.formats import EntryFormat
from di_kernels.reference import formats as reference
from di_kernels.testing import (
    Hostile,
    assert_same_bits,
    assert_same_values,
    device_backends,
    hostile,
    instructions,
    threads,
    with_gaps,
    with_row_gaps,
)

GROUPED = (EntryFormat.FP8, EntryFormat.FP4, EntryFormat.MXFP4)
ALL_BYTES = torch.arange(256, dtype=torch.uint8)

MXFP4_INPUT = """0 -0 .1001 -.1001 .3008 -.3008 .5 -.5 .75 -.75 1 -1 1.2969 -1.2969 1.7031 -1.7031 2.0938 -2.0938
2.5938 -2.5938 3.2969 -3.2969 4.1875 -4.1875 5.0938 -5.0938 .02 -.02 .8984 -.8984 6.90625 -7.5"""
FP4_INPUT = """.10986328125 -.26953125 .5 -.62109375 .8984375 -1.046875 1.3125 -1.6015625 1.8984375 -2.203125 2.453125
.030029296875 -.030029296875 0 2.75 -3.09375"""
FP8_INPUT = """0 .00099945 -.01001 .10009766 -.25 .33203125 1 -1.5 2 3.140625 -4 5.5 -7.25 8.8125 -10 12.3125 -5 -4.3125
-3.59375 -2.90625 -2.203125 -1.5 -.80078125 -.10009766 .6015625 1.296875 2 2.703125 3.40625 4.09375 4.8125 5.5"""
FP4_VALUES = "0 -.25 .5 -.5 1 -1 1.5 -1.5 2 -2 2 0 -0 0 3 -3"
FP8_VALUES = """0 .0009765625 -.009765625 .1015625 -.25 .34375 1 -1.5 2 3.25 -4 5.5 -7 9 -10 12 -5 -4.5 -3.5 -3 -2.25
-1.5 -.8125 -.1015625 .625 1.25 2 2.75 3.5 4 5 5.5"""
FP8_CODES = "0010aa45d05360e4686df073f679fa7cf2f1eeece9e4ddc55a62686b6e707273"


def numbers(text: str) -> torch.Tensor:
    return torch.tensor([float(word) for word in text.split()])


def codes_of(text: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("entry", "values", "codes", "scale", "decoded"),
    [
        (EntryFormat.MXFP4, MXFP4_INPUT, "80808080919191a2a2b3b3c4d58091e5", "80", None),
        (EntryFormat.FP4, FP4_INPUT, "90a2c4d5e60608f7", "30", FP4_VALUES),
        (EntryFormat.FP8, FP8_INPUT, FP8_CODES, "7a", FP8_VALUES),
    ],
)
def test_worked_examples_of_the_cache_formats(
    entry: EntryFormat, values: str, codes: str, scale: str, decoded: str | None
) -> None:
    got_codes, got_scales = formats.encode(numbers(values).to(torch.bfloat16), entry)
    assert_same_bits(got_codes, codes_of(codes))
    assert_same_bits(got_scales, codes_of(scale))
    if decoded is not None:
        assert_same_bits(formats.decode(got_codes, got_scales, entry), numbers(decoded))


@pytest.mark.parametrize(
    ("sixth", "scale", "codes", "decoded"),
    [
        (-449.0, 128, "30bc286404f6", [1, -3, 0.5, 96, 0.015625, -448]),
        (-448.0, 127, "38c4306c07fe", [1, -3, 0.5, 96, 0.013671875, -448]),
    ],
)
def test_worked_example_of_the_checkpoint_format(
    sixth: float, scale: int, codes: str, decoded: list[float]
) -> None:
    x = torch.zeros(32)
    x[:6] = torch.tensor([1, -3, 0.5, 100, 0.013671875, sixth])
    got_codes, got_scales = formats.encode(x, EntryFormat.FP8)
    assert got_scales.tolist() == [scale]
    assert_same_bits(got_codes[:6], codes_of(codes))
    assert formats.decode(got_codes, got_scales, EntryFormat.FP8)[:6].tolist() == decoded


def test_worked_example_of_an_expert_row() -> None:
    row = torch.cat([codes_of("1032547698badcfe"), torch.zeros(8, dtype=torch.uint8)])
    got = formats.decode(row, torch.tensor([125], dtype=torch.uint8), EntryFormat.MXFP4)
    magnitudes = torch.tensor([0, 0.125, 0.25, 0.375, 0.5, 0.75, 1, 1.5])
    assert_same_bits(got[:16], torch.cat([magnitudes, -magnitudes]))


@pytest.mark.parametrize(
    ("largest", "scale"),
    [
        (0, 105),
        (0.109375, 115),
        (1, 119),
        (1.75, 119),
        (1.8, 120),
        (3.5, 120),
        (10, 122),
        (448, 127),
        (449, 128),
    ],
)
def test_scale_bytes_of_activation_quantization(largest: float, scale: int) -> None:
    x = torch.zeros(32)
    x[7] = largest
    assert formats.encode(x, EntryFormat.FP8)[1].tolist() == [scale]


@pytest.mark.parametrize(
    ("entry", "scale"), [(EntryFormat.FP8, 105), (EntryFormat.FP4, 1), (EntryFormat.MXFP4, 1)]
)
def test_zero_groups_keep_their_signs(entry: EntryFormat, scale: int) -> None:
    x = torch.cat([torch.zeros(32), -torch.zeros(32)])
    codes, scales = formats.encode(x, entry)
    assert set(scales.tolist()) == {scale}
    assert_same_bits(formats.decode(codes, scales, entry), x)


@pytest.mark.parametrize(
    ("entry", "name", "codes", "scales"),
    [
        (EntryFormat.FP8, "mxfp8", "code", "scale_e8m0"),
        (EntryFormat.MXFP4, "mxfp4", "packed", "scale_e8m0"),
        (EntryFormat.FP4, "kvfp4", "packed", "scale_e4m3"),
    ],
)
def test_golden_quantizers(golden, entry: EntryFormat, name: str, codes: str, scales: str) -> None:
    x = golden("quant.x.bf16")
    got_codes, got_scales = formats.encode(x, entry)
    assert_same_bits(got_codes, golden(f"{name}.{codes}"))
    assert_same_bits(got_scales, golden(f"{name}.{scales}"))
    assert_same_bits(
        formats.decode(got_codes, got_scales, entry, torch.bfloat16), golden(f"{name}.dequant.bf16")
    )
    assert_same_bits(formats.round_trip(x, entry), golden(f"{name}.dequant.bf16"))


@pytest.mark.parametrize("device", device_backends("formats"))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("entry", GROUPED)
def test_matches_reference(entry: EntryFormat, kind: Hostile, dtype: torch.dtype, device: str) -> None:
    x = hostile(kind, 3, 5, 96, dtype=dtype)
    expected = reference.encode(x, entry)
    for layout in (x, with_gaps(x), with_row_gaps(x), x.transpose(0, 1).contiguous().transpose(0, 1)):
        codes, scales = formats.encode(layout.to(device), entry)
        assert_same_bits(codes.cpu(), expected[0])
        assert_same_bits(scales.cpu(), expected[1])
    for out in (torch.bfloat16, torch.float32):
        assert_same_values(
            formats.decode(codes, scales, entry, out).cpu(), reference.decode(*expected, entry, out)
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", list(Hostile))
@pytest.mark.parametrize("entry", GROUPED)
def test_every_instruction_set_matches_the_reference(
    entry: EntryFormat, kind: Hostile, dtype: torch.dtype
) -> None:
    x = hostile(kind, 3, 96, dtype=dtype)
    codes, scales = reference.encode(x, entry)
    decoded = reference.decode(codes, scales, entry, dtype)
    for name in instruction_sets():
        with instructions(name):
            got = formats.encode(x, entry)
            assert_same_bits(got[0], codes)
            assert_same_bits(got[1], scales)
            assert_same_values(formats.decode(codes, scales, entry, dtype), decoded)
            assert_same_values(formats.round_trip(x, entry), decoded)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_value_passes_the_round_trip_like_the_reference(dtype: torch.dtype) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    groups = torch.zeros(1 << 16, 32, dtype=dtype)
    groups[:, 3], groups[:, 20] = every, every.roll(77)
    expected = reference.round_trip(groups, EntryFormat.FP8)
    assert_same_values(formats.round_trip(groups, EntryFormat.FP8), expected)


@pytest.mark.parametrize("entry", GROUPED)
def test_every_bfloat16_value_is_encoded_like_the_reference(entry: EntryFormat) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    groups = torch.zeros(1 << 16, 32, dtype=torch.bfloat16)
    groups[:, 3], groups[:, 20] = every, every
    for got, expected in zip(formats.encode(groups, entry), reference.encode(groups, entry), strict=True):
        assert_same_bits(got, expected)


@pytest.mark.parametrize("entry", GROUPED)
def test_every_code_under_every_scale_is_decoded_like_the_reference(entry: EntryFormat) -> None:
    codes = ALL_BYTES.repeat(256, 1)
    scales = ALL_BYTES[:, None].repeat(
        1, 8 if entry is EntryFormat.FP8 else 32 if entry is EntryFormat.FP4 else 16
    )
    for dtype in (torch.bfloat16, torch.float32):
        expected = reference.decode(codes, scales, entry, dtype)
        assert_same_values(formats.decode(codes, scales, entry, dtype), expected)


@pytest.mark.parametrize("entry", GROUPED)
def test_a_nan_makes_its_group_nan_and_touches_no_other(entry: EntryFormat) -> None:
    x = hostile(Hostile.NORMAL, 2, 128)
    clean = formats.round_trip(x, entry)
    x[1, 70] = float("nan")
    got = formats.round_trip(x, entry)
    group = 16 if entry is EntryFormat.FP4 else 32
    affected = slice(70 // group * group, 70 // group * group + group)
    assert got[1, affected].isnan().all()
    got[1, affected] = clean[1, affected]
    assert_same_bits(got, clean)


@pytest.mark.parametrize("entry", [*GROUPED, EntryFormat.FLOAT32])
@pytest.mark.parametrize("dim", [32, 512])
def test_records_hold_codes_then_scales(entry: EntryFormat, dim: int) -> None:
    x = hostile(Hostile.OUTLIERS, 7, dim)
    records = formats.encode_records(x, entry)
    assert records.shape == (7, dim if entry is EntryFormat.FLOAT32 else entry.record_bytes(dim))
    expected = x if entry is EntryFormat.FLOAT32 else formats.round_trip(x, entry)
    assert_same_bits(formats.decode_records(records, entry), expected)


@pytest.mark.parametrize("entry", GROUPED)
@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0,), (2, 0, 32)])
def test_empty_tensors(entry: EntryFormat, shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    codes, scales = formats.encode(x, entry)
    assert formats.decode(codes, scales, entry).shape == x.shape


@pytest.mark.parametrize("entry", GROUPED)
def test_rows_do_not_depend_on_each_other_or_on_threads(entry: EntryFormat) -> None:
    x = hostile(Hostile.OUTLIERS, 67, 96)
    with threads(1):
        codes, scales = formats.encode(x, entry)
    with threads(2):
        assert_same_bits(formats.encode(x, entry)[0], codes)
        values = formats.decode(codes, scales, entry)
    for row in (0, 33, 66):
        alone = formats.encode(x[row : row + 1], entry)
        assert_same_bits(alone[0][0], codes[row])
        assert_same_bits(formats.decode(*alone, entry)[0], values[row])


def test_bad_arguments_are_refused() -> None:
    x, codes = torch.zeros(2, 64), torch.zeros(2, 64, dtype=torch.uint8)
    with pytest.raises(TypeError, match="float64"):
        formats.encode(x.double(), EntryFormat.FP8)
    with pytest.raises(ValueError, match="multiple of 32"):
        formats.encode(torch.zeros(2, 48), EntryFormat.MXFP4)
    with pytest.raises(ValueError, match="FLOAT32"):
        formats.encode(x, EntryFormat.FLOAT32)
    with pytest.raises(ValueError, match=r"codes has shape \[2, 64\]; expected \[2, 96\]"):
        formats.decode(codes, torch.zeros(2, 3, dtype=torch.uint8), EntryFormat.FP8)
    with pytest.raises(ValueError, match="scales has shape"):
        formats.decode(codes, torch.zeros(3, 2, dtype=torch.uint8), EntryFormat.FP8)
    with pytest.raises(TypeError, match="float16"):
        formats.decode(codes, torch.zeros(2, 2, dtype=torch.uint8), EntryFormat.FP8, torch.float16)
