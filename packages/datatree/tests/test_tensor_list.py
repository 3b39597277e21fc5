"""Members of a tensor list are views of one flattened buffer."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_datatree import DataNode, TensorList, TorchAllocator


@given(
    sizes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 3)), max_size=6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e4m3fn]),
    lead=st.integers(0, 3),
)
def test_members_lie_where_they_were_placed(sizes, dtype, lead):
    members, numel = [], 0
    for index, (rows, columns, gap) in enumerate(sizes):
        members.append((f"m{index}", (rows, columns), numel + gap))
        numel += gap + rows * columns
    root = DataNode("root", (16 * lead + numel * dtype.itemsize,), torch.uint8)
    tensors = TensorList.build("list", dtype, members, numel, parent=root, byte_offset=16 * lead)
    root.finalize()
    root.attach(TorchAllocator())
    base = root.tensor.data_ptr() + 16 * lead
    assert list(tensors.members) == [name for name, _, _ in members]
    for name, shape, offset in members:
        member = tensors.member(name)
        assert member.shape == shape
        assert member.dtype == dtype
        assert member.parent is tensors
        if member.nbytes:
            assert member.tensor.data_ptr() == base + offset * dtype.itemsize


def test_heads_and_their_projection_share_bytes():
    heads = TensorList.build(
        "heads", torch.float32, [(f"h{i}", (2, 3), 6 * i) for i in range(3)], 18
    )
    packed = DataNode("projection", (6, 3), torch.float32, parent=heads)
    heads.finalize()
    heads.attach(TorchAllocator())
    packed.tensor.copy_(torch.arange(18).view(6, 3))
    assert heads.member("h1").tensor.tolist() == [[6, 7, 8], [9, 10, 11]]
    assert heads.tensor.tolist() == list(range(18))
    assert "projection" not in heads.members


def test_a_list_may_be_empty():
    empty = TensorList.build("empty", torch.float32, [], 0)
    empty.finalize()
    empty.attach(TorchAllocator())
    assert empty.tensor.shape == (0,)
    assert empty.members == {}


def test_scalar_and_zero_size_members():
    tensors = TensorList.build("list", torch.float32, [("scale", (), 0), ("none", (0, 7), 1)], 4)
    tensors.finalize()
    tensors.attach(TorchAllocator())
    tensors.tensor.fill_(5)
    assert tensors.member("scale").tensor.item() == 5
    assert tensors.member("none").tensor.shape == (0, 7)


def test_unknown_member():
    tensors = TensorList.build("list", torch.float32, [("w", (2,), 0)], 2)
    with pytest.raises(KeyError) as caught:
        tensors.member("v")
    assert caught.value.args == (
        "expected one of the 1 members of 'list', got 'v'; members are those passed to build()",
    )


def test_members_are_read_only():
    tensors = TensorList.build("list", torch.float32, [("w", (2,), 0)], 2)
    with pytest.raises(TypeError):
        tensors.members["v"] = tensors


def test_a_member_beyond_the_end_is_refused():
    tensors = TensorList.build("list", torch.float32, [("w", (2,), 1)], 2)
    with pytest.raises(ValueError, match="expected node 'list/w' within the 8 bytes"):
        tensors.finalize()


def test_two_members_of_one_name_are_refused():
    tensors = TensorList.build("list", torch.float32, [("w", (1,), 0), ("w", (1,), 1)], 2)
    with pytest.raises(ValueError, match="got 'w' twice"):
        tensors.finalize()
