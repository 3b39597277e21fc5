"""Quantized tensors as values: slices, files, devices, text."""

import io

import pytest
import torch

from sshsdp_mxfp import E5M2, MXFP4, MXFP6, MXFP8, MXTensor, quantize

FORMATS = {
    "1x32": MXFP8(),
    "32x32 e5m2": MXFP8((32, 32), E5M2, "floor"),
    "32x1": MXFP8((32, 1), rule="even"),
    "e2m3": MXFP6((1, 32)),
    "e2m1": MXFP4((1, 32)),
}


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def assert_equal(one, two):
    assert one.format == two.format
    assert one.shape == two.shape
    assert torch.equal(one.codes, two.codes)
    assert torch.equal(one.scale_codes, two.scale_codes)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(
    "index",
    [
        slice(None),
        slice(1, 2),
        0,
        -1,
        (slice(None), slice(32, 96)),
        (1, slice(-32, None), slice(64)),
        (slice(None), slice(None), slice(32, 64)),
        (0, slice(64, 32)),
        (slice(0, 1), slice(1000, 2000)),
    ],
)
def test_a_slice_is_the_quantized_slice_and_shares_memory(fmt, index):
    x = random(2, 128, 96)
    q = quantize(x, fmt)
    part = q[index]
    assert_equal(part, quantize(x[index], fmt))
    assert torch.equal(part.dequantize(), q.dequantize()[index])
    assert part.data.untyped_storage().data_ptr() == q.data.untyped_storage().data_ptr()


def test_a_slice_may_end_in_the_middle_of_a_ragged_block():
    x = random(70, 45)
    for fmt in (MXFP8((32, 32), ragged="partial"), MXFP4((1, 32), ragged="partial")):
        q = quantize(x, fmt)
        assert_equal(q[64:, 32:], quantize(x[64:, 32:], fmt))


def test_rows_are_selected_where_blocks_have_one():
    x = random(4, 64)
    q = quantize(x, MXFP8())
    assert_equal(q[2], quantize(x[2], MXFP8()))
    assert_equal(q[1:2, 32:], quantize(x[1:2, 32:], MXFP8()))


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (slice(5, 64), r"multiples of 32 or at the end of dimension 0, got 5:64 of 64"),
        (slice(0, 33), r"multiples of 32 .*, got 0:33 of 64"),
        ((slice(None), slice(16, None)), r"dimension 1, got 16:128 of 128"),
        (3, r"expected a slice in dimension 0, .*, got 3; use \[0:32\]"),
        ((slice(None), 40), r"expected a slice in dimension 1, .*; use \[32:64\]"),
        (slice(None, None, 2), r"expected slices of step 1, got 2 in dimension 0"),
        ((0, 0, 0), r"expected at most 2 indices, got 3"),
    ],
)
def test_a_slice_that_cuts_blocks_is_refused(index, text):
    with pytest.raises(ValueError, match=text):
        quantize(random(64, 128), MXFP8((32, 32)))[index]


def test_a_slice_that_cuts_a_byte_is_refused():
    q = quantize(random(64, 6), MXFP4((32, 1)))
    with pytest.raises(ValueError, match=r"multiples of 2 or at the end of dimension 1, got 1:4"):
        q[:, 1:4]
    with pytest.raises(ValueError, match=r"expected a slice in dimension 1, whose elements share"):
        q[:, 3]


def test_an_integer_out_of_range_is_refused():
    with pytest.raises(IndexError, match="expected an index below 4 in dimension 0, got 4"):
        quantize(random(4, 64), MXFP8())[4]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("weights_only", [True, False])
def test_a_file_gives_it_back(fmt, weights_only):
    q = quantize(random(64, 96), fmt)
    file = io.BytesIO()
    torch.save({"weight": q}, file)
    file.seek(0)
    assert_equal(torch.load(file, weights_only=weights_only)["weight"], q)


def test_transposing_exchanges_rows_and_columns_of_blocks():
    x = random(3, 64, 96)
    q = quantize(x, MXFP8((1, 32)))
    assert_equal(q.mT, quantize(x.mT, MXFP8((32, 1))))
    assert_equal(q.mT.mT, q)
    with pytest.raises(ValueError, match="elements of whole bytes to transpose, got e2m1"):
        _ = quantize(x, MXFP4()).mT
    with pytest.raises(ValueError, match=r"at least 2 dimensions, got shape \[96\]"):
        _ = q[0, 0].mT


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS)
def test_moves_between_devices_and_copies(fmt):
    q = quantize(random(64, 96), fmt)
    assert q.to("cpu") is q
    assert q.to("meta").device.type == "meta"
    assert q.to("meta").format == fmt
    copy = q.clone()
    assert_equal(copy, q)
    assert copy.data.data_ptr() != q.data.data_ptr()


def test_text_says_what_a_person_wants_to_know():
    x = torch.ones(64, 64)
    x[0, 0] = 8.0
    assert repr(quantize(x, MXFP8((32, 32)))) == (
        "MXTensor([64, 64], e4m3 in blocks of 32x32, rceil, scales 2^-8..2^-5, 4100 bytes on cpu)"
    )
    x[0, 0] = torch.nan
    assert "scales 2^-8, 1 of NaN, " in repr(quantize(x, MXFP8((32, 32))))
    x.fill_(torch.nan)
    assert "scales NaN, " in repr(quantize(x, MXFP8()))
    assert "scales unread, " in repr(MXTensor.empty((4, 32), MXFP8(), device="meta"))
    assert repr(MXFP8()) == "MXFP8(block=(1, 32), element=E4M3, rule='rceil', ragged='refuse')"


@pytest.mark.parametrize(
    ("fmt", "expected"),
    [(MXFP8(), 8.25), (MXFP8((32, 32)), 8 + 1 / 128), (MXFP6(), 8.25), (MXFP4(), 4.25)],
)
def test_bits_per_element_are_those_of_the_storage(fmt, expected):
    assert fmt.bits_per_element == expected
    assert MXTensor.empty((64, 64), fmt).nbytes * 8 / 4096 == expected
