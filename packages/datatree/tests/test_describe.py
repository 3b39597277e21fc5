"""A description shows who shares what, in literal text."""

import pytest
import torch

from sshsdp_datatree import DataNode, TensorList, TorchAllocator, describe


@pytest.fixture
def root():
    root = DataNode("root", (96,), torch.uint8)
    members = [("q", (2, 4), 0), ("k", (4,), 8)]
    TensorList.build("weights", torch.float32, members, 16, parent=root)
    DataNode("packed", (12,), torch.float32, parent=root)
    DataNode("scale", (), torch.bfloat16, parent=root, byte_offset=64)
    root.finalize()
    return root


def test_a_small_tree(root):
    assert describe(root) == (
        "root: uint8 [96], bytes 0..96, 30 in no child (detached)\n"
        "  weights: float32 [16], bytes 0..64, 16 in no child, shares 48 with packed\n"
        "    q: float32 [2, 4], bytes 0..32\n"
        "    k: float32 [4], bytes 32..48\n"
        "  packed: float32 [12], bytes 0..48, shares 48 with weights\n"
        "  scale: bfloat16 [], bytes 64..66"
    )


def test_the_phase_is_shown(root):
    root.attach(TorchAllocator())
    assert describe(root).splitlines()[0].endswith("(attached)")


def test_a_part_of_a_tree_keeps_offsets_of_the_root(root):
    part = DataNode("outer", (8,), torch.uint8)
    inner = DataNode("inner", (4,), torch.uint8, parent=part, byte_offset=4)
    DataNode("leaf", (2,), torch.uint8, parent=inner, byte_offset=2)
    part.finalize()
    assert describe(inner) == (
        "inner: uint8 [4], bytes 4..8, 2 in no child (detached)\n  leaf: uint8 [2], bytes 6..8"
    )


def test_many_sharing_siblings_are_counted():
    root = DataNode("slot", (8,), torch.uint8)
    for index in range(6):
        DataNode(f"group{index}", (8 - index,), torch.uint8, parent=root)
    root.finalize()
    assert describe(root).splitlines()[1] == (
        "  group0: uint8 [8], bytes 0..8, "
        "shares 7 with group1 and 6 with group2 and 5 with group3 and 2 more"
    )


def test_a_tree_under_construction_is_refused():
    with pytest.raises(RuntimeError, match="call finalize"):
        describe(DataNode("root", (8,), torch.uint8))
