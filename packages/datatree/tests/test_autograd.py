"""Nodes look like independent tensors to autograd, whoever else shares their bytes."""

import pytest
import torch

from sshsdp_datatree import DataNode, TorchAllocator


@pytest.fixture
def root():
    root = DataNode("root", (32,), torch.uint8)
    DataNode("a", (4,), torch.float32, parent=root)
    DataNode("b", (4,), torch.float32, parent=root, byte_offset=16)
    root.finalize()
    root.attach(TorchAllocator())
    root.tensor.zero_()
    return root


def test_writing_a_sibling_does_not_invalidate_what_backward_needs(root):
    a, b = root.children
    weight = torch.nn.Parameter(a.tensor)
    loss = (weight * weight).sum()
    b.tensor.fill_(2)
    root.tensor[16:].fill_(0)
    loss.backward()
    assert weight.grad.tolist() == [0, 0, 0, 0]


def test_writing_the_tensor_itself_is_still_noticed(root):
    a, _ = root.children
    weight = torch.nn.Parameter(a.tensor)
    loss = (weight * weight).sum()
    a.tensor.fill_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_first_touch_in_another_mode_leaves_a_tensor_that_trains(root, mode):
    a, _ = root.children
    with mode():
        first = a.tensor
    assert not first.is_inference()
    weight = torch.nn.Parameter(first)
    (weight * weight).sum().backward()
    assert a.tensor is first
    first.add_(1)
    assert root.tensor[:16].view(torch.float32).tolist() == [1, 1, 1, 1]


def test_an_arena_allocated_in_inference_mode_trains():
    root = DataNode("root", (2,), torch.float32)
    root.finalize()
    with torch.inference_mode():
        root.attach(TorchAllocator())
    root.tensor.fill_(3)
    weight = torch.nn.Parameter(root.tensor)
    weight.square().sum().backward()
    assert weight.grad.tolist() == [6, 6]
