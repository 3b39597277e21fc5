"""Callbacks of any node follow the storage of the root."""

import pytest
import torch

from sshsdp_datatree import DataNode, TorchAllocator


@pytest.fixture
def root():
    root = DataNode("root", (16,), torch.uint8)
    DataNode("leaf", (4,), torch.float32, parent=root)
    root.finalize()
    return root


@pytest.fixture
def leaf(root):
    return root.children[0]


def test_callbacks_of_any_node_are_called_every_time(root, leaf):
    calls = []
    leaf.on_attach(lambda: calls.append(("attached", leaf.tensor.data_ptr())))
    leaf.on_detach(lambda: calls.append(("detaching", leaf.tensor.data_ptr())))
    for _ in range(2):
        storage = torch.zeros(16, dtype=torch.uint8)
        root.attach(storage)
        root.detach()
        assert calls[-2:] == [("attached", storage.data_ptr()), ("detaching", storage.data_ptr())]
    assert len(calls) == 4


def test_attach_goes_in_order_and_detach_in_reverse(root, leaf):
    calls = []
    for node, name in ((leaf, "first"), (root, "second"), (leaf, "third")):
        node.on_attach(lambda name=name: calls.append(name))
        node.on_detach(lambda name=name: calls.append(name))
    root.attach(TorchAllocator())
    assert calls == ["first", "second", "third"]
    root.detach()
    assert calls[3:] == ["third", "second", "first"]


def test_an_error_in_an_attach_callback_undoes_the_attach(root, leaf):
    def fail():
        raise KeyError("no")

    root.on_attach(fail)
    with pytest.raises(KeyError):
        leaf.attach(TorchAllocator())
    assert root.phase == "detached"


def test_an_error_in_a_detach_callback_does_not_keep_the_storage(root, leaf):
    def fail():
        raise KeyError("no")

    root.on_detach(fail)
    root.attach(TorchAllocator())
    with pytest.raises(KeyError):
        leaf.detach()
    assert root.phase == "detached"
