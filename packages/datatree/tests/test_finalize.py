"""Trees that could not work are refused before they have storage, with what to do."""

import pytest
import torch

from sshsdp_datatree import DataNode


@pytest.fixture
def root():
    return DataNode("root", (16,), torch.uint8)


def refusal(node, error=ValueError):
    with pytest.raises(error) as caught:
        node.finalize()
    return str(caught.value)


def test_offsets_add_up(root):
    inner = DataNode("inner", (3,), torch.float32, parent=root, byte_offset=4)
    leaf = DataNode("leaf", (), torch.bfloat16, parent=inner, byte_offset=6)
    root.finalize()
    assert [node.root_offset for node in (root, inner, leaf)] == [0, 4, 10]
    assert [node.byte_offset for node in (root, inner, leaf)] == [0, 4, 6]
    assert [node.nbytes for node in (root, inner, leaf)] == [16, 12, 2]
    assert leaf.path == "root/inner/leaf"
    assert leaf.root is root
    assert root.children == (inner,)


def test_child_beyond_the_end(root):
    DataNode("w", (4,), torch.float32, parent=root, byte_offset=4)
    assert refusal(root) == (
        "expected node 'root/w' within the 16 bytes of its parent, got bytes 4..20; "
        "move it or enlarge the parent"
    )


def test_child_before_the_start(root):
    DataNode("w", (1,), torch.float32, parent=root, byte_offset=-4)
    assert refusal(root) == (
        "expected node 'root/w' within the 16 bytes of its parent, got bytes -4..0; "
        "move it or enlarge the parent"
    )


def test_grandchild_within_the_root_but_not_its_parent(root):
    inner = DataNode("inner", (4,), torch.uint8, parent=root)
    DataNode("w", (2,), torch.float32, parent=inner)
    assert refusal(root).startswith("expected node 'root/inner/w' within the 4 bytes of its parent")


def test_misaligned_child(root):
    inner = DataNode("inner", (8,), torch.uint8, parent=root, byte_offset=2)
    DataNode("w", (1,), torch.float32, parent=inner, byte_offset=4)
    assert refusal(root) == (
        "expected node 'root/inner/w' at a multiple of 4 bytes (torch.float32) in the root, got 6; "
        "change byte_offset=4"
    )


def test_offsets_that_are_aligned_only_in_sum_are_legal(root):
    inner = DataNode("inner", (8,), torch.uint8, parent=root, byte_offset=2)
    DataNode("w", (1,), torch.float32, parent=inner, byte_offset=2)
    root.finalize()


def test_siblings_of_one_name(root):
    for _ in range(2):
        DataNode("w", (1,), torch.float32, parent=root)
    assert refusal(root) == (
        "expected children of 'root' with different names, got 'w' twice; rename one"
    )


def test_cousins_may_share_a_name(root):
    for name in ("a", "b"):
        DataNode("w", (1,), torch.uint8, parent=DataNode(name, (1,), torch.uint8, parent=root))
    root.finalize()


def test_a_refused_tree_is_still_building(root):
    DataNode("w", (17,), torch.uint8, parent=root)
    refusal(root)
    assert root.phase == "building"


def test_only_the_root_is_finalized(root):
    child = DataNode("w", (1,), torch.uint8, parent=root)
    assert refusal(child, RuntimeError) == (
        "expected the root, got 'root/w'; call finalize() on 'root'"
    )


def test_finalize_once(root):
    root.finalize()
    assert refusal(root, RuntimeError) == (
        "expected tree 'root' to be building, got one that is detached; call finalize() once"
    )


def test_no_children_after_finalize(root):
    root.finalize()
    with pytest.raises(RuntimeError) as caught:
        DataNode("late", (1,), torch.uint8, parent=root)
    assert str(caught.value) == (
        "expected tree 'root' to be building, got one that is detached; "
        "create 'late' before finalize()"
    )
    assert root.children == ()


def test_root_offset_needs_a_checked_tree(root):
    child = DataNode("w", (1,), torch.uint8, parent=root)
    with pytest.raises(RuntimeError) as caught:
        _ = child.root_offset
    assert str(caught.value) == (
        "expected a finalized tree to give the root offset of 'root/w', got one that is building; "
        "call finalize() on the root"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a/b", (1,)), "expected a name without '/', got 'a/b'; paths are made of names"),
        (("", (1,)), "expected a name without '/', got ''; paths are made of names"),
        (("w", (2, -1)), "expected sizes of 0 or more, got (2, -1) for node 'w'"),
    ],
)
def test_impossible_names_and_shapes(arguments, message):
    with pytest.raises(ValueError, match="expected") as caught:
        DataNode(*arguments, torch.uint8)
    assert str(caught.value) == message


def test_a_root_starts_at_byte_0():
    with pytest.raises(ValueError, match="expected root") as caught:
        DataNode("root", (1,), torch.uint8, byte_offset=4)
    assert str(caught.value) == (
        "expected root 'root' at byte 0, got byte_offset=4; "
        "offsets are relative to a parent, cut the storage instead"
    )


def test_a_deep_tree_is_no_problem(root):
    node = root
    for _ in range(2000):
        node = DataNode("n", (16,), torch.uint8, parent=node)
    root.finalize()
    assert sum(1 for _ in root.walk()) == 2001
