"""Attaching and detaching: any node speaks for the tree, and no view outlives its storage."""

import gc
import weakref

import pytest
import torch

from sshsdp_datatree import DataNode, DetachedError, TorchAllocator


def memory(nbytes=64):
    return torch.zeros(nbytes, dtype=torch.uint8)


@pytest.fixture
def root():
    root = DataNode("root", (32,), torch.uint8)
    inner = DataNode("inner", (8,), torch.float32, parent=root)
    DataNode("leaf", (2, 2), torch.float32, parent=inner, byte_offset=16)
    root.finalize()
    return root


@pytest.fixture
def leaf(root):
    return root.children[0].children[0]


@pytest.mark.parametrize("attacher", range(3))
@pytest.mark.parametrize("detacher", range(3))
def test_any_node_speaks_for_the_tree(root, attacher, detacher):
    nodes = list(root.walk())
    assert [node.path for node in nodes] == ["root", "root/inner", "root/inner/leaf"]
    assert {node.phase for node in nodes} == {"detached"}
    nodes[attacher].attach(memory())
    assert {node.phase for node in nodes} == {"attached"}
    nodes[detacher].detach()
    assert {node.phase for node in nodes} == {"detached"}


def test_metadata_stays_without_storage(root, leaf):
    def facts():
        return [(n.name, n.shape, n.dtype, n.nbytes, n.root_offset, n.path) for n in root.walk()]

    before = facts()
    root.attach(memory())
    root.detach()
    assert facts() == before
    assert (leaf.parent.name, leaf.root) == ("inner", root)


def test_the_tensor_is_cached_while_attached(root, leaf):
    root.attach(memory())
    assert leaf.tensor is leaf.tensor


def test_views_of_old_storage_are_not_handed_out_after_attaching_anew(root, leaf):
    first, second = memory(), memory()
    root.attach(first)
    stale = [node.tensor for node in root.walk()]
    root.detach()
    root.attach(second)
    for node, old in zip(root.walk(), stale, strict=True):
        assert node.tensor is not old
    leaf.tensor.fill_(1)
    assert first.count_nonzero() == 0
    assert second.count_nonzero() > 0


def test_detaching_lets_the_memory_go(root, leaf):
    storage = memory()
    gone = weakref.ref(storage.untyped_storage())
    root.attach(storage)
    leaf.tensor.fill_(1)
    del storage
    gc.collect()
    assert gone() is not None
    root.detach()
    gc.collect()
    assert gone() is None


def test_touching_a_detached_node_says_what_to_call(root, leaf):
    message = (
        "expected node 'root/inner/leaf' to be attached, got a tree that is detached; call attach()"
    )
    for touch in (lambda: leaf.tensor, leaf.poison):
        with pytest.raises(DetachedError) as caught:
            touch()
        assert str(caught.value) == message
    root.attach(memory())
    assert leaf.tensor.shape == (2, 2)
    root.detach()
    with pytest.raises(DetachedError) as caught:
        _ = leaf.tensor
    assert str(caught.value) == message


def test_touching_a_node_of_a_tree_under_construction_says_what_to_call():
    root = DataNode("root", (8,), torch.uint8)
    child = DataNode("child", (2,), torch.float32, parent=root)
    with pytest.raises(DetachedError) as caught:
        _ = child.tensor
    assert str(caught.value) == (
        "expected node 'root/child' to be attached, got a tree that is building; "
        "call finalize() on the root, then attach()"
    )


def test_detaching_twice_is_an_error(root, leaf):
    with pytest.raises(DetachedError, match="expected node 'root' to be attached"):
        leaf.detach()


def test_attaching_twice_is_an_error(root, leaf):
    root.attach(memory())
    with pytest.raises(RuntimeError) as caught:
        leaf.attach(memory())
    assert str(caught.value) == (
        "expected tree 'root' to be detached, got one that is attached; detach() it first"
    )


def test_attaching_before_finalize_is_an_error():
    with pytest.raises(RuntimeError) as caught:
        DataNode("root", (8,), torch.uint8).attach(memory())
    assert str(caught.value) == (
        "expected tree 'root' to be detached, got one that is building; finalize() the root first"
    )


@pytest.mark.parametrize(
    ("storage", "got"),
    [
        (memory(31), "torch.uint8 of shape (31,) and strides (1,)"),
        (memory(64).view(8, 8), "torch.uint8 of shape (8, 8) and strides (8, 1)"),
        (memory(64)[::2], "torch.uint8 of shape (32,) and strides (2,)"),
        (memory(64).view(torch.int8), "torch.int8 of shape (64,) and strides (1,)"),
    ],
)
def test_storage_that_does_not_fit_is_refused(root, storage, got):
    with pytest.raises(ValueError, match="expected a contiguous") as caught:
        root.attach(storage)
    assert str(caught.value) == (
        "expected a contiguous 1-D uint8 tensor of at least 32 bytes for tree 'root', "
        f"got {got}; pass flat memory or another allocator"
    )
    assert root.phase == "detached"


def test_misaligned_storage_is_refused(root):
    with pytest.raises(ValueError, match="expected storage aligned") as caught:
        root.attach(memory()[2:])
    assert str(caught.value) == (
        "expected storage aligned to 4 bytes for tree 'root', got an address of 2 and an offset "
        "of 2 past a multiple; cut it at a multiple, 64 suits every tree"
    )
    root.attach(memory()[4:])


def test_an_empty_tree_can_be_attached():
    root = DataNode("root", (0,), torch.uint8)
    child = DataNode("child", (0, 3), torch.float64, parent=root)
    root.finalize()
    root.attach(TorchAllocator())
    assert child.tensor.shape == (0, 3)
