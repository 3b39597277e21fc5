"""Poison makes NaN of floating leaves and fills what no child covers, and nothing else."""

import pytest
import torch

from sshsdp_datatree import DataNode, TorchAllocator

FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]


def attached(root):
    root.finalize()
    root.attach(TorchAllocator())
    root.tensor.zero_()
    return root


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_float_becomes_nan(dtype):
    root = DataNode("root", (32,), torch.uint8)
    leaf = DataNode("leaf", (4,), dtype, parent=root)
    attached(root).poison()
    assert leaf.tensor.to(torch.float32).isnan().all()


def test_complex_becomes_nan():
    root = attached(DataNode("root", (3,), torch.complex64))
    root.poison()
    assert root.tensor.real.isnan().all()
    assert root.tensor.imag.isnan().all()


def test_gaps_are_filled_and_integers_kept():
    root = DataNode("root", (24,), torch.uint8)
    DataNode("second", (2,), torch.int16, parent=root, byte_offset=12)
    DataNode("first", (1,), torch.int32, parent=root, byte_offset=4)
    attached(root).poison()
    kept = [index for index, byte in enumerate(root.tensor.tolist()) if byte == 0]
    assert kept == [4, 5, 6, 7, 12, 13, 14, 15]


def test_overlapping_children_cover_together():
    root = DataNode("root", (16,), torch.uint8)
    DataNode("long", (12,), torch.int8, parent=root)
    DataNode("short", (2,), torch.int8, parent=root, byte_offset=4)
    attached(root).poison()
    assert root.tensor.tolist() == [0] * 12 + [255] * 4


def test_padding_of_a_nested_list_is_filled():
    root = DataNode("root", (16,), torch.uint8)
    inner = DataNode("inner", (8,), torch.int8, parent=root, byte_offset=4)
    DataNode("leaf", (2,), torch.int8, parent=inner, byte_offset=2)
    attached(root).poison()
    assert [i for i, byte in enumerate(root.tensor.tolist()) if byte == 0] == [6, 7]


def test_only_the_node_and_what_is_below_it():
    root = DataNode("root", (16,), torch.uint8)
    left = DataNode("left", (2,), torch.float32, parent=root)
    right = DataNode("right", (2,), torch.float32, parent=root, byte_offset=8)
    attached(root)
    left.poison()
    assert left.tensor.isnan().all()
    assert right.tensor.tolist() == [0, 0]


def test_an_integer_leaf_alone_is_kept():
    root = attached(DataNode("root", (4,), torch.int32))
    root.poison()
    assert root.tensor.tolist() == [0, 0, 0, 0]


def test_poison_works_in_inference_mode_and_out_of_it():
    root = DataNode("root", (4,), torch.float32)
    root.finalize()
    with torch.inference_mode():
        root.attach(TorchAllocator())
        root.poison()
    root.poison()
    assert root.tensor.isnan().all()
