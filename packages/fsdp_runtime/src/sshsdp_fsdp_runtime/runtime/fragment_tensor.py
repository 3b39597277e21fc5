"""A rank's flat fragment of a logical tensor, as torch.distributed.checkpoint understands it."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from sshsdp_fsdp_runtime.runtime.boxes import Box, boxes


class FragmentTensor(torch.Tensor):
    """Has the logical shape and dtype of a whole tensor and holds one flat range of its elements.

    It may stand in any state dict given to ``torch.distributed.checkpoint.save`` or ``load``, which
    see the rectangles of the range; loading writes into the local memory in place. It has no other
    operation: a whole tensor needs communication, which no operator can promise.

    Args:
        local: 1-D contiguous tensor, the elements ``[start, start + numel)``; may be empty.
        shape: logical shape of the whole tensor.
        start: first element that `local` holds, relative to the whole tensor.
        writes: whether this rank saves its elements. Of several replicas exactly one may; of a
            tensor with zero elements exactly one rank must, or the tensor is absent when loaded.
    """

    local: torch.Tensor
    boxes: tuple[Box, ...]
    start: int
    writes: bool

    @staticmethod
    def __new__(  # noqa: D102 - the class says it
        cls: type["FragmentTensor"],
        local: torch.Tensor,
        shape: Sequence[int],
        start: int,
        *,
        writes: bool = True,
    ) -> "FragmentTensor":
        if local.dim() != 1 or not local.is_contiguous():
            raise ValueError(
                f"expected a contiguous 1-D fragment, got shape {tuple(local.shape)} with strides "
                f"{local.stride()}; pass a slice of the flat buffer"
            )
        self: FragmentTensor = torch.Tensor._make_wrapper_subclass(
            cls, torch.Size(shape), dtype=local.dtype, device=local.device
        )
        self.local = local.detach()
        self.boxes = boxes(shape, start, start + local.numel())
        self.start = start
        self.writes = writes
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> NoReturn:
        raise TypeError(
            f"expected torch.distributed.checkpoint to be the only user of a FragmentTensor, got "
            f"{func}; use its `local` elements, or gather the full state dict first"
        )

    # What libraries ask that write whole tensors: pickle, safetensors, Hugging Face's models.

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError(
            "expected whole tensors to save, got one rank's fragment from model.state_dict(); save "
            "model.full_state_dict() (save_pretrained has state_dict= for it), or the fragments "
            "with save_checkpoint() or torch.distributed.checkpoint"
        )

    __reduce_ex__ = _refuse
    storage = _refuse
    untyped_storage = _refuse
    data_ptr = _refuse

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        stop = self.start + self.local.numel()
        return (
            f"FragmentTensor(shape={tuple(self.shape)}, dtype={self.dtype}, "
            f"elements=[{self.start}, {stop}), writes={self.writes})"
        )

    def __create_write_items__(self, fqn: str, object: "FragmentTensor") -> list[WriteItem]:  # noqa: A002
        """Called by torch.distributed.checkpoint when it saves; one item per rectangle."""
        if not self.writes:
            return []
        properties = TensorProperties.create_from_tensor(self.local)
        chunks = self.__create_chunk_list__()
        if self.numel() == 0:
            chunks = [ChunkStorageMetadata(torch.Size([0] * self.dim()), self.shape)]
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets, index),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.shape),
            )
            for index, chunk in enumerate(chunks)
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        """Called by torch.distributed.checkpoint when it loads; one chunk per rectangle."""
        return [
            ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))
            for box in self.boxes
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        """The rectangle at `index` as a view of the local elements."""
        if self.numel() == 0:
            return self.local.view(self.shape)
        for box in self.boxes:
            if torch.Size(box.offsets) == index.offset:
                begin = box.start - self.start
                return self.local[begin : begin + box.numel].view(box.sizes)
        raise ValueError(f"expected the offsets of a rectangle of {self!r}, got {index.offset}")
