"""Parameters must have memory of their own: bytes that two of them share would part."""

from collections.abc import Mapping

import torch


def check_own_memory(parameters: Mapping[str, torch.Tensor]) -> None:
    """Look at strides, and at every byte of those that lie in each other's range.

    Args:
        parameters: different objects, by name, on the CPU.

    Raises:
        TypeError: elements of one, or of two, are the same memory.
    """
    for name, parameter in parameters.items():
        if any(s == 0 and n > 1 for s, n in zip(parameter.stride(), parameter.shape, strict=True)):
            raise TypeError(
                f"expected elements with memory of their own, got {name!r} with strides "
                f"{parameter.stride()} for shape {tuple(parameter.shape)}; make it of a clone()"
            )
    before: list[tuple[int, str]] = []  # (end, name) of those that begin earlier and end later
    for start, stop, name in sorted(_range(n, p) for n, p in parameters.items() if p.numel()):
        before = [(end, other) for end, other in before if end > start]
        for _, other in before:
            if _overlap(parameters[name], parameters[other]):
                raise TypeError(
                    f"expected parameters with memory of their own, got {name!r} that shares some "
                    f"with {other!r}; use one parameter in both places, or a clone()"
                )
        before.append((stop, name))


def _range(name: str, parameter: torch.Tensor) -> tuple[int, int, str]:
    """Address of the first byte, of one past the last, and the name."""
    sizes = zip(parameter.shape, parameter.stride(), strict=True)
    elements = 1 + sum((numel - 1) * stride for numel, stride in sizes)
    start = parameter.data_ptr()
    return start, start + elements * parameter.element_size(), name


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two parameters have a byte in common."""
    ranges = [_range("", tensor) for tensor in (one, other)]
    first, last = min(start for start, *_ in ranges), max(stop for _, stop, _ in ranges)
    flags = [torch.zeros(last - first, dtype=torch.bool) for _ in ranges]
    for tensor, (start, *_), mine in zip((one, other), ranges, flags, strict=True):
        size = tensor.element_size()
        strides = (*(stride * size for stride in tensor.stride()), 1)
        mine.as_strided((*tensor.shape, size), strides, start - first).fill_(True)
    return bool((flags[0] & flags[1]).any())
