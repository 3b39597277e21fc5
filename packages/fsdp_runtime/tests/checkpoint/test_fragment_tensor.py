"""A fragment shows torch.distributed.checkpoint its rectangles and nothing else to anyone."""

import pytest
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

from sshsdp_fsdp_runtime.runtime import FragmentTensor


def test_it_has_the_logical_shape_and_dtype():
    fragment = FragmentTensor(torch.zeros(4, dtype=torch.bfloat16), (3, 5), 4)
    assert isinstance(fragment, torch.Tensor)
    assert fragment.shape == (3, 5)
    assert fragment.dtype == torch.bfloat16
    assert "shape=(3, 5), dtype=torch.bfloat16, elements=[4, 8)" in repr(fragment)


def test_its_shards_are_views_of_the_local_memory():
    local = torch.arange(4, 13)
    fragment = FragmentTensor(local, (3, 5), 4)
    items = fragment.__create_write_items__("x", fragment)
    whole = torch.full((3, 5), -1)
    for item in items:
        chunk = item.tensor_data.chunk
        shard = fragment.__get_tensor_shard__(item.index)
        assert shard.untyped_storage().data_ptr() == local.untyped_storage().data_ptr()
        spans = zip(chunk.offsets, chunk.sizes, strict=True)
        whole[tuple(slice(o, o + n) for o, n in spans)] = shard
    assert whole.reshape(-1).tolist() == [-1] * 4 + list(range(4, 13)) + [-1] * 2


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2, 3)])
def test_a_tensor_without_elements_is_one_item_of_the_writer(shape):
    none = torch.zeros(0)
    (item,) = FragmentTensor(none, shape, 0).__create_write_items__("x", None)
    assert item.tensor_data.chunk.sizes == shape
    assert FragmentTensor(none, shape, 0, writes=False).__create_write_items__("x", None) == []


def test_a_rank_without_elements_and_a_silent_replica_write_nothing():
    assert FragmentTensor(torch.zeros(0), (3,), 1).__create_write_items__("x", None) == []
    silent = FragmentTensor(torch.zeros(3), (3,), 0, writes=False)
    assert silent.__create_write_items__("x", None) == []
    assert len(silent.__create_chunk_list__()) == 1


def test_other_operations_say_what_to_do():
    with pytest.raises(TypeError, match="gather the full state dict first"):
        FragmentTensor(torch.zeros(2), (2,), 0).clone()


def test_a_wrong_fragment_is_refused():
    with pytest.raises(ValueError, match="contiguous 1-D fragment"):
        FragmentTensor(torch.zeros(2, 2), (2, 2), 0)
    with pytest.raises(ValueError, match="6 elements"):
        FragmentTensor(torch.zeros(4), (2, 3), 3)
    with pytest.raises(ValueError, match="offsets of a rectangle"):
        FragmentTensor(torch.zeros(2), (4,), 1).__get_tensor_shard__(
            MetadataIndex("x", torch.Size([2]))
        )
