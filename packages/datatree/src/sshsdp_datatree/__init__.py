"""View-based shared storage for PyTorch: many tensors, one allocation, no copies."""

from .allocator import Allocator, TorchAllocator
from .description import describe
from .errors import DetachedError
from .node import DataNode
from .tensor_list import TensorList

__all__ = [
    "Allocator",
    "DataNode",
    "DetachedError",
    "TensorList",
    "TorchAllocator",
    "describe",
]
