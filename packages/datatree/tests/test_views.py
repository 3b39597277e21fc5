"""Random trees against an oracle that is a bytearray and offsets added by hand."""

from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st

from sshsdp_datatree import DataNode, TorchAllocator

DTYPES = [
    torch.uint8,
    torch.bool,
    torch.int64,
    torch.float8_e4m3fn,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


@dataclass
class Case:
    """A finalized tree, and of every node the place in the root."""

    root: DataNode
    places: list[tuple[DataNode, int]]


@st.composite
def shapes(draw, numel):
    """Any shape of at most so many elements, 0-d and empty ones included."""
    if numel == 0:
        return draw(st.sampled_from([(0,), (3, 0), (0, 2, 2)]))
    count = draw(st.integers(1, numel))
    factors = [n for n in range(1, count + 1) if count % n == 0]
    rows = draw(st.sampled_from(factors))
    return draw(
        st.sampled_from([(count,), (rows, count // rows), (1, count), *[()] * (count == 1)])
    )


@st.composite
def cases(draw):
    root = DataNode("root", (draw(st.integers(0, 200)),), torch.uint8)
    places = [(root, 0)]
    for index in range(draw(st.integers(0, 8))):
        parent, parent_place = draw(st.sampled_from(places))
        dtype = draw(st.sampled_from(DTYPES))
        starts = [
            start
            for start in range(parent.nbytes + 1)
            if (parent_place + start) % dtype.itemsize == 0
        ]
        if not starts:
            continue
        start = draw(st.sampled_from(starts))
        shape = draw(shapes((parent.nbytes - start) // dtype.itemsize))
        node = DataNode(f"n{index}", shape, dtype, parent=parent, byte_offset=start)
        places.append((node, parent_place + start))
    root.finalize()
    return Case(root, places)


def flat_bytes(node):
    return node.tensor.reshape(-1).view(torch.uint8)


@given(case=cases(), data=st.data())
def test_writes_through_any_node_are_seen_by_all(case, data):
    case.root.attach(TorchAllocator())
    oracle = bytearray(data.draw(st.binary(min_size=case.root.nbytes, max_size=case.root.nbytes)))
    case.root.tensor.copy_(torch.tensor(list(oracle), dtype=torch.uint8))
    for _ in range(data.draw(st.integers(0, 5))):
        node, place = data.draw(st.sampled_from(case.places))
        new = data.draw(st.binary(min_size=node.nbytes, max_size=node.nbytes))
        flat_bytes(node).copy_(torch.tensor(list(new), dtype=torch.uint8))
        oracle[place : place + node.nbytes] = new
        for seen, at in case.places:
            assert bytes(flat_bytes(seen).tolist()) == oracle[at : at + seen.nbytes]


@given(case=cases())
def test_tensors_have_the_declared_metadata(case):
    case.root.attach(TorchAllocator())
    for node, place in case.places:
        assert node.root_offset == place
        assert tuple(node.tensor.shape) == node.shape
        assert node.tensor.dtype == node.dtype
        assert node.tensor.is_contiguous()
        assert node.tensor.numel() * node.dtype.itemsize == node.nbytes
        if node.nbytes:
            assert node.tensor.data_ptr() == case.root.tensor.data_ptr() + place


@given(case=cases())
def test_there_is_one_storage(case):
    case.root.attach(TorchAllocator())
    storages = {node.tensor.untyped_storage().data_ptr() for node, _ in case.places}
    assert len(storages) == 1


def test_a_slice_of_larger_memory_is_respected():
    root = DataNode("root", (16,), torch.uint8)
    child = DataNode("child", (2,), torch.int32, parent=root, byte_offset=8)
    root.finalize()
    memory = torch.zeros(64, dtype=torch.uint8)
    root.attach(memory[32:])
    child.tensor.fill_(-1)
    assert memory.nonzero().flatten().tolist() == list(range(40, 48))
    assert memory.numel() == 64


def test_two_trees_share_nothing():
    trees = []
    for _ in range(2):
        root = DataNode("root", (16,), torch.uint8)
        child = DataNode("child", (4,), torch.float32, parent=root)
        root.finalize()
        root.attach(TorchAllocator())
        child.tensor.fill_(0)
        trees.append((root, child))
    (one, one_child), (other, other_child) = trees
    one_child.tensor.fill_(1)
    assert other_child.tensor.tolist() == [0, 0, 0, 0]
    one.detach()
    assert other.phase == "attached"
    assert other_child.tensor.tolist() == [0, 0, 0, 0]
