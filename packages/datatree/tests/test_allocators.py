"""Storage from allocators: asked once per attach, given back once, also when things go wrong."""

import pytest
import torch

from sshsdp_datatree import DataNode, TorchAllocator


class Ledger:
    """An allocator that writes down what happened; ``spare`` bytes more or less than asked."""

    def __init__(self, spare=0):
        self.spare = spare
        self.log = []
        self.last = None

    def allocate(self, nbytes, name):
        self.log.append(("allocate", nbytes, name))
        self.last = torch.zeros(nbytes + self.spare, dtype=torch.uint8)
        return self.last

    def release(self, storage):
        assert storage is self.last
        self.log.append(("release", storage.numel()))


@pytest.fixture
def root():
    root = DataNode("temporaries", (16,), torch.uint8)
    DataNode("u", (2,), torch.float32, parent=root)
    DataNode("count", (1,), torch.int64, parent=root, byte_offset=8)
    root.finalize()
    return root


def test_an_allocator_is_asked_by_attach_and_paid_back_by_detach(root):
    ledger = Ledger(spare=48)
    root.attach(ledger)
    assert ledger.log == [("allocate", 16, "temporaries")]
    assert root.tensor.shape == (16,)
    root.detach()
    assert ledger.log[1:] == [("release", 64)]


def test_a_tensor_of_the_caller_is_not_released_to_an_earlier_allocator(root):
    ledger = Ledger()
    root.attach(ledger)
    root.detach()
    root.attach(torch.zeros(16, dtype=torch.uint8))
    root.detach()
    assert [entry[0] for entry in ledger.log] == ["allocate", "release"]


def test_storage_that_does_not_fit_goes_back(root):
    ledger = Ledger(spare=-1)
    with pytest.raises(ValueError, match="at least 16 bytes"):
        root.attach(ledger)
    assert ledger.log[1:] == [("release", 15)]
    assert root.phase == "detached"


def test_scoped_storage_is_there_in_the_block_only(root):
    ledger = Ledger()
    with root.children[0].allocated(ledger):
        assert root.phase == "attached"
        assert root.tensor.data_ptr() == ledger.last.data_ptr()
    assert root.phase == "detached"
    assert [entry[0] for entry in ledger.log] == ["allocate", "release"]


def test_scoped_storage_goes_back_after_an_error(root):
    ledger = Ledger()
    with pytest.raises(ZeroDivisionError), root.allocated(ledger):
        _ = 1 / 0
    assert root.phase == "detached"
    assert ledger.log[1:] == [("release", 16)]


def test_a_second_scope_has_fresh_views(root):
    u = root.children[0]
    with root.allocated(Ledger()):
        first = u.tensor
    with root.allocated(Ledger()):
        assert u.tensor is not first
        assert u.tensor.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()


def test_poisoned_scopes_leave_nothing_to_read(root):
    u, count = root.children
    seen = []
    root.on_detach(lambda: seen.append(u.tensor.tolist()))
    with root.allocated(Ledger(spare=8), poison=True):
        u.tensor.fill_(1)
        kept = u.tensor, count.tensor, root.tensor
    assert seen == [[1, 1]]  # whoever saves the values on detach still finds them
    assert kept[0].isnan().all()
    assert kept[1].tolist() == [-1]
    assert kept[2].tolist() == [255] * 16


def test_poison_stays_within_the_tree(root):
    ledger = Ledger(spare=8)
    with root.allocated(ledger, poison=True):
        pass
    assert ledger.last.tolist() == [255] * 16 + [0] * 8


@pytest.mark.parametrize("nbytes", [0, 1, 63, 100_000])
def test_torch_allocator_gives_aligned_flat_bytes(nbytes):
    storage = TorchAllocator().allocate(nbytes, "name")
    assert storage.dtype == torch.uint8
    assert storage.shape == (nbytes,)
    assert storage.data_ptr() % 64 == 0
    assert storage.device.type == "cpu"


def test_torch_allocator_allocates_where_it_was_told():
    assert TorchAllocator("meta").allocate(8, "name").device.type == "meta"
