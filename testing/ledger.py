"""Observes memory operations from outside: what every torch operation reads, writes and allocates.

    with Ledger({"gradients": slot}) as ledger:
        loss.backward()
    assert not ledger.written("gradients", kinds={Kind.COPY, Kind.ADD})

Seen are the operations of the thread that entered the ledger, those of a backward that it runs
on the CPU included. Not seen is memory that is touched without torch (numpy, a transport's own
copies): for those the transport's counters are compared.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Kind(StrEnum):
    """What an operation does to memory."""

    COPY = "copy"
    ZERO = "zero"
    ADD = "add"
    MATMUL = "matmul"
    EMPTY = "empty"
    EXCHANGE = "exchange"
    OTHER = "other"


_KINDS = {
    Kind.COPY: """
        copy copy_ _to_copy clone cat _chunk_cat chunk_cat split_with_sizes_copy
        split_copy unbind_copy slice_copy select_copy view_copy expand_copy permute_copy repeat
        _foreach_copy_ _foreach_clone index_copy index_copy_ masked_scatter masked_scatter_ scatter
        scatter_ slice_scatter select_scatter as_strided_scatter index_put index_put_
        _index_put_impl_ _unsafe_index_put constant_pad_nd all_gather_copy_in
    """,
    Kind.ZERO: """
        zero zero_ zeros zeros_like new_zeros fill fill_ full full_like new_full _foreach_zero_
    """,
    Kind.ADD: """
        add add_ _foreach_add _foreach_add_ index_add index_add_ scatter_add scatter_add_
        scatter_reduce scatter_reduce_ addcmul_ sub_ lerp_ _foreach_lerp_ _foreach_addcmul_
    """,
    Kind.MATMUL: """
        mm addmm addmm_ bmm baddbmm baddbmm_ mv addmv addmv_ dot addbmm addr addr_ _grouped_mm
        _scaled_mm linear linear_backward matmul
    """,
    Kind.EMPTY: "empty empty_like empty_strided new_empty new_empty_strided",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}


@dataclass(frozen=True)
class Entry:
    """One operation.

    Attributes:
        op: its name with its overload, such as ``aten.mm.out``.
        kind: what it does to memory.
        node: the autograd node it ran in, such as ``AccumulateGrad``; empty outside a backward.
        reads: bytes read of each named range that it reads of.
        writes: bytes written of each named range that it writes to.
        read_bytes: of all its tensor inputs.
        written_bytes: of all its tensor outputs, given and new.
        allocated_bytes: of the outputs it made itself.
    """

    op: str
    kind: Kind
    node: str
    reads: Mapping[str, int]
    writes: Mapping[str, int]
    read_bytes: int
    written_bytes: int
    allocated_bytes: int


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations while it is entered; may be entered again, and then records on.

    Args:
        ranges: names for the memory of tensors; ranges may overlap, each counts for itself.
        counters: a dataclass of monotone ints, such as a transport's, whose growth is recorded.

    Bytes of a strided view are exact if it lies inside of a range and upper bounds where it only
    overlaps it. A range's memory has to stay allocated until the ledger is left.
    """

    def __init__(
        self, ranges: Mapping[str, torch.Tensor] | None = None, counters: Any = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ranges = {name: _Extent.of(tensor) for name, tensor in (ranges or {}).items()}
        self.entries: list[Entry] = []
        self.counted: dict[str, int] = defaultdict(int)
        self._counters = counters
        self._before: dict[str, int] = {}

    def __enter__(self) -> "Ledger":
        self._before = _values(self._counters)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for name, value in _values(self._counters).items():
            self.counted[name] += value - self._before[name]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for kind in types):
            # A tensor subclass that wraps others goes first; what it does to those comes here.
            return NotImplemented
        outputs = func(*args, **kwargs)
        self._record(func, args, kwargs, outputs)
        return outputs

    def written(self, name: str, kinds: Collection[Kind] = tuple(Kind)) -> list[Entry]:
        """Operations of the given kinds that wrote to a named range, in order."""
        self._check(name)
        return [e for e in self.entries if e.writes.get(name) and e.kind in kinds]

    def read(self, name: str, kinds: Collection[Kind] = tuple(Kind)) -> list[Entry]:
        """Operations of the given kinds that read of a named range, in order."""
        self._check(name)
        return [e for e in self.entries if e.reads.get(name) and e.kind in kinds]

    def of(self, kind: Kind) -> list[Entry]:
        """Operations of one kind, in order."""
        return [entry for entry in self.entries if entry.kind is kind]

    def allocated(self, at_least: int) -> list[Entry]:
        """Operations that made outputs of this many bytes or more, in order."""
        return [entry for entry in self.entries if entry.allocated_bytes >= at_least]

    def summary(self) -> str:
        """A line per operation and node: calls, bytes, and bytes per named range."""
        groups: dict[tuple[str, str, str], list[Entry]] = defaultdict(list)
        for entry in self.entries:
            groups[entry.kind, entry.op, entry.node].append(entry)
        lines = [f"{name}: {value}" for name, value in self.counted.items()]
        for (kind, op, node), entries in sorted(groups.items()):
            total = {
                "read": sum(e.read_bytes for e in entries),
                "written": sum(e.written_bytes for e in entries),
                "allocated": sum(e.allocated_bytes for e in entries),
            }
            for name in self.ranges:
                total[f"from {name}"] = sum(e.reads.get(name, 0) for e in entries)
                total[f"to {name}"] = sum(e.writes.get(name, 0) for e in entries)
            bytes_ = ", ".join(f"{what} {n}" for what, n in total.items() if n)
            lines.append(f"{kind:6} {op} x{len(entries)} {f'in {node} ' if node else ''}{bytes_}")
        return "\n".join(lines)

    def _check(self, name: str) -> None:
        if name not in self.ranges:
            raise KeyError(f"expected one of the ranges {list(self.ranges)}, got {name!r}")

    def _record(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], outputs: Any
    ) -> None:
        results = _tensors(outputs)
        returned = {_Extent.of(tensor) for tensor in results}
        known = {_address(tensor) for tensor in _tensors((args, kwargs))}
        made = [tensor for tensor in results if _address(tensor) not in known]
        kind = _kind(func, args, kwargs)
        read, given = _operands(func, args, kwargs, kind, returned)
        if not (read or given or made) or _is_view(func):
            return
        written = given if kind is Kind.EMPTY else [*given, *made]
        current = torch._C._current_autograd_node()
        self.entries.append(
            Entry(
                op=str(func),
                kind=kind,
                node=current.name().rpartition("::")[2] if current is not None else "",
                reads=self._ranges_of(read),
                writes=self._ranges_of(written),
                read_bytes=sum(_Extent.of(tensor).nbytes for tensor in read),
                written_bytes=sum(_Extent.of(tensor).nbytes for tensor in written),
                allocated_bytes=sum(_Extent.of(tensor).nbytes for tensor in made),
            )
        )

    def _ranges_of(self, tensors: list[torch.Tensor]) -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for tensor in tensors:
            extent = _Extent.of(tensor)
            for name, whole in self.ranges.items():
                if nbytes := extent.bytes_in(whole):
                    found[name] += nbytes
        return dict(found)


@dataclass(frozen=True)
class _Extent:
    """Addresses from the first to after the last byte of a tensor, and how many are used."""

    start: int
    stop: int
    nbytes: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "_Extent":
        if tensor.numel() == 0 or tensor.is_meta:
            return cls(0, 0, 0)
        pairs = list(zip(tensor.shape, tensor.stride(), strict=True))
        span = 1 + sum((size - 1) * stride for size, stride in pairs)
        used = 1
        for size, stride in pairs:
            used *= size if stride else 1
        start, item = tensor.data_ptr(), tensor.element_size()
        return cls(start, start + span * item, min(used, span) * item)

    def bytes_in(self, whole: "_Extent") -> int:
        common = min(self.stop, whole.stop) - max(self.start, whole.start)
        return max(0, min(common, self.nbytes))


def _kind(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Kind:
    if func.namespace == "c10d":
        return Kind.EXCHANGE
    for argument, value in _bound(func, args, kwargs):
        if argument.name == "accumulate" and value:
            return Kind.ADD
    return _KIND_OF.get(func._schema.name.rpartition("::")[2], Kind.OTHER)


def _address(tensor: torch.Tensor) -> int:
    """Of the storage: equal for views of the same memory; 0 where there is none."""
    return tensor.untyped_storage().data_ptr()


def _is_view(func: Any) -> bool:
    return bool(func.is_view) or func._schema.name == "aten::_unsafe_view"


def _operands(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    kind: Kind,
    returned: set["_Extent"],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors that an operation reads, and those given to it that it writes.

    What is changed in place is written, and read too unless the operation only overwrites it.
    Libraries other than aten don't always declare what they write; it is the memory they return.
    """
    read: list[torch.Tensor] = []
    written: list[torch.Tensor] = []
    for argument, value in _bound(func, args, kwargs):
        for tensor in _tensors(value):
            declared = argument.alias_info is not None and argument.alias_info.is_write
            if declared or (func.namespace != "aten" and _Extent.of(tensor) in returned):
                written.append(tensor)
                if argument.is_out or not declared or kind is Kind.COPY:
                    continue
            if kind not in (Kind.ZERO, Kind.EMPTY):
                read.append(tensor)
    return read, written


def _bound(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args) and not argument.kwarg_only:
            yield argument, args[position]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _values(counters: Any) -> dict[str, int]:
    return dataclasses.asdict(counters) if counters is not None else {}
