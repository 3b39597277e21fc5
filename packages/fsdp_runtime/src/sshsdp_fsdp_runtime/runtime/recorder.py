"""Records how a model is constructed, without values and without memory.

A model is built from fake tensors (shapes, dtypes, storages without bytes). Every operation on them
is kept, with its operands named by storage and geometry, so that the same operations can be run
later on real memory, in the same order and hence with the same random numbers.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from sshsdp_fsdp_runtime.runtime.recording import Operation, Recording, Ref
from sshsdp_fsdp_runtime.runtime.replay import Replay

# In-place operations that read nothing of what they write.
_OVERWRITING = frozenset(
    f"aten::{name}_"
    for name in (
        "bernoulli",
        "cauchy",
        "copy",
        "exponential",
        "fill",
        "geometric",
        "log_normal",
        "normal",
        "random",
        "uniform",
        "zero",
    )
)


class Recorder(FakeTensorMode):  # type: ignore[no-untyped-call]
    """While active, tensors are fake and operations on them are recorded.

    Fake tensors keep their recorder: operations on them after the construction (a cast, an edit)
    are recorded as well.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.recording = Recording()
        self._depth = 0
        self._closed = False
        self._rng_state = self.recording.rng_state

    def close(self) -> None:
        """Refuse further operations: the recording was replayed, they would have no effect."""
        self._closed = True

    def __deepcopy__(self, memo: dict[int, Any]) -> "Recorder":
        return self  # a copied module belongs to the same recording

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation on fakes, and keep it unless another one consists of it."""
        kwargs = kwargs or {}
        if self._closed:
            raise RuntimeError(
                "expected tensors of a model to be parameters, buffers or attributes of modules, "
                f"got {func} on one that deferred_init() made and fully_shard() could not find; "
                "make it a buffer"
            )
        if self._depth == 0 and func is torch.ops.aten._local_scalar_dense.default:
            return self._item(args[0])
        self._depth += 1
        try:
            before = (_copied(args), _copied(kwargs)) if self._depth == 1 else None
            result = super().__torch_dispatch__(func, types, args, kwargs)
        except (
            DataDependentOutputException,
            DynamicOutputShapeException,
            UnsupportedFakeTensorException,
        ) as error:
            raise _undecided(str(func)) from error
        finally:
            self._depth -= 1
        self._forget(result)
        if before is not None:
            self._keep(func, *before, result)
        return result

    def _forget(self, result: Any) -> None:
        """Drop the weak references that would keep Module.to() from exchanging values.

        Known values of small tensors go with them: `_item` finds out values where they matter.
        """
        for leaf in tree_leaves(result):
            if isinstance(leaf, FakeTensor):
                leaf.constant = None
        self.fake_tensor_converter.constant_storage_mapping.clear()
        self.fake_tensor_converter.meta_converter.tensor_memo.clear()

    def _item(self, tensor: torch.Tensor) -> Any:
        """The value of a tensor of one element, where no random numbers are needed for it."""
        value = self.recording.ref(tensor)
        with _disable_current_modes():
            known = Replay(self.recording).value(value)
        if known is None:
            raise _undecided("aten._local_scalar_dense.default")
        return known.item()

    def opaque(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A function on ``(tensor, ...)`` in place of `function`, which is recorded as a whole.

        It overwrites its first argument with random values that depend on nothing else.
        """

        def record(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(tensor, FakeTensor):
                return function(tensor, *args, **kwargs)
            self._refuse_generator(name, kwargs)
            ref = self.recording.ref(tensor)
            whole = frozenset({ref.storage} if self.recording.covers(ref) else ())
            written = frozenset({ref.storage})
            self._append(name, function, (ref, *args), kwargs, (), written, written, whole, True)
            return tensor

        return record

    def _keep(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        ref = self.recording.ref
        outputs = tuple(ref(leaf) for leaf in tree_leaves(result) if isinstance(leaf, FakeTensor))
        named = tree_leaves(self._named((args, kwargs)))
        inputs = {leaf.storage for leaf in named if isinstance(leaf, Ref)}
        targets = list(_written(func, args, kwargs))
        for target in targets:
            if not isinstance(target, FakeTensor):
                raise RuntimeError(
                    "expected changes of tensors that were made in deferred_init() only, got "
                    f"{func} on one from outside; make it inside, or build the model without "
                    "deferred_init()"
                )
        written = [ref(target) for target in targets]
        created = frozenset(out.storage for out in outputs) - inputs
        if not created and not written:
            return  # a view, or a question
        random = torch.Tag.nondeterministic_seeded in func.tags
        if random:
            self._refuse_generator(str(func), kwargs)
        over = func._schema.name in _OVERWRITING or func._schema.overload_name.endswith("out")
        overwrites = frozenset(r.storage for r in written if over and self.recording.covers(r))
        sources = inputs if not over else self._sources(func, args, kwargs, written)
        self._append(
            str(func),
            func,
            self._named(args),
            self._named(kwargs),
            outputs,
            frozenset(sources) - overwrites,
            created | frozenset(r.storage for r in written),
            overwrites | created,
            random,
        )

    def _sources(self, func: Any, args: Any, kwargs: Any, written: Sequence[Ref]) -> set[int]:
        """Storages that an overwriting operation reads: a target that it covers partly, too."""
        targets = {id(tensor) for tensor in _written(func, args, kwargs)}
        others = [
            leaf
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, FakeTensor) and id(leaf) not in targets
        ]
        partly = {r.storage for r in written if not self.recording.covers(r)}
        return {self.recording.ref(tensor).storage for tensor in others} | partly

    def _append(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        outputs: tuple[Ref, ...],
        reads: frozenset[int],
        writes: frozenset[int],
        overwrites: frozenset[int],
        random: bool,
    ) -> None:
        state = None
        if random:
            state = self._new_rng_state()
        self.recording.operations.append(
            Operation(
                name=name,
                function=function,
                args=args,
                kwargs=kwargs,
                outputs=outputs,
                reads=reads - overwrites,
                writes=writes,
                overwrites=overwrites,
                random=random,
                default_dtype=torch.get_default_dtype(),
                rng_state=state,
            )
        )

    def _new_rng_state(self) -> torch.Tensor | None:
        """State of the CPU generator if somebody has seeded it since the operation before."""
        with _disable_current_modes():
            now = torch.get_rng_state()
            if torch.equal(now, self._rng_state):
                return None
        self._rng_state = now
        return now

    def _named(self, arguments: Any) -> Any:
        def name(leaf: Any) -> Any:
            return self.recording.ref(leaf) if isinstance(leaf, FakeTensor) else leaf

        return tree_map(name, arguments)

    def _refuse_generator(self, name: str, kwargs: Mapping[str, Any]) -> None:
        if kwargs.get("generator") is not None:
            raise RuntimeError(
                "expected random numbers of torch's default generator, got generator= for "
                f"{name} in deferred_init(); seed with torch.manual_seed(), or build the model "
                "without deferred_init()"
            )


@contextmanager
def recording_into(recorder: Recorder) -> Iterator[None]:
    """Make tensors fake and record operations.

    ``trunc_normal_`` is recorded as one operation: it draws until all values are in range, so what
    it is made of depends on values.
    """
    init: Any = torch.nn.init
    # Tensor.__deepcopy__ asks every subclass for its address, and finds no answer but a warning.
    ignored = "Accessing the data pointer of FakeTensor"
    truncated = init._no_grad_trunc_normal_
    init._no_grad_trunc_normal_ = recorder.opaque(truncated, "torch.nn.init.trunc_normal_")
    try:
        with warnings.catch_warnings(), recorder:
            warnings.filterwarnings("ignore", message=ignored)
            yield
        recorder.recording.left = torch.get_rng_state()
    finally:
        init._no_grad_trunc_normal_ = truncated


def _copied(arguments: Any) -> Any:
    """Arguments with real tensors copied: they are constants of the recording."""

    def copy(leaf: Any) -> Any:
        real = isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor)
        return _clone(leaf) if real else leaf

    return tree_map(copy, arguments)


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    with _disable_current_modes():
        return tensor.detach().clone()


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Arguments that an operation writes, by its schema."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for leaf in tree_leaves(value):
                if isinstance(leaf, torch.Tensor):
                    yield leaf


def _undecided(name: str) -> RuntimeError:
    return RuntimeError(
        "expected a construction whose course does not depend on random values, got "
        f"{name} in deferred_init(); compute it in plain Python, or build the model without "
        "deferred_init()"
    )
