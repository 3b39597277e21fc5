"""Models without memory: construction is recorded, and replayed when the model is sharded."""

import hashlib
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

from sshsdp_fsdp_runtime.runtime.handle import ParameterHandle
from sshsdp_fsdp_runtime.runtime.initial_values import broadcast
from sshsdp_fsdp_runtime.runtime.pieces import store
from sshsdp_fsdp_runtime.runtime.recorder import Recorder, recording_into
from sshsdp_fsdp_runtime.runtime.recording import Ref
from sshsdp_fsdp_runtime.runtime.replay import Replay, Sink
from sshsdp_zerosm import Transport

Initial: TypeAlias = Literal["given", "recorded", "drawn"]
Place: TypeAlias = tuple[MutableMapping[str, Any], str]


@contextmanager
def deferred_init() -> Iterator[None]:
    """Build a model without memory for its weights; `fully_shard` fills them in.

    Construction runs as usual, but on tensors without values, and is recorded. `fully_shard`
    replays it tensor by tensor, so that a rank holds one tensor besides its shards. Weights,
    buffers and tied weights equal those of a construction without it, bit for bit, under the same
    seed of ``torch.manual_seed``: the one that held on entering, or set inside. Casts and edits of
    the model after the construction are recorded as well.

    Raises:
        RuntimeError: inside, for what can't be replayed: a course that depends on random values,
            ``generator=``, changes of tensors that were made outside.
    """
    with recording_into(Recorder()):
        yield


def initial_values_of(model: nn.Module) -> Initial:
    """Where a model's initial values will come from.

    Returns:
        ``given``: they are there. ``recorded``: from its construction in `deferred_init`.
        ``drawn``: the model is on the meta device and is initialized by its own methods.

    Raises:
        RuntimeError: parameters differ in that.
    """
    kinds = {name: _kind(parameter) for name, parameter in model.named_parameters()}
    first: Initial = next(iter(kinds.values()), "given")
    for name, kind in kinds.items():
        if kind != first:
            raise RuntimeError(
                f"expected all parameters to be built alike, got {name!r} that is {_WORDS[kind]} "
                f"and {next(iter(kinds))!r} that is {_WORDS[first]}; build the whole model inside "
                "one deferred_init()"
            )
    return first


class Construction:
    """The recorded construction of a model, whose parameters are shells from here on.

    Args:
        model: built in `deferred_init`, or on the meta device; changed in place.
    """

    def __init__(self, model: nn.Module) -> None:
        if initial_values_of(model) == "drawn":
            _initialize_anew(model)
        self._recorder = _recorder_of(model)
        self._recording = self._recorder.recording
        self._parameters: dict[int, Ref] = {}
        self._kept: list[tuple[Place, Any]] = []  # trees with `Ref` in place of fake tensors
        shells: dict[int, nn.Parameter] = {}

        def without_memory(leaf: Any) -> Any:
            if not isinstance(leaf, FakeTensor):
                return leaf
            ref = self._recording.ref(leaf)
            if not isinstance(leaf, nn.Parameter):
                return ref
            if id(leaf) not in shells:
                shells[id(leaf)] = _shell(leaf)
                self._parameters[id(shells[id(leaf)])] = ref
            return shells[id(leaf)]

        originals = []  # held: an address must not come back as another parameter's
        for place in _places(model):
            holder, key = place
            originals.append(holder[key])
            holder[key] = tree = tree_map(without_memory, holder[key])
            if any(isinstance(leaf, Ref) for leaf in tree_leaves(tree)):
                self._kept.append((place, tree))

    def fill(
        self,
        handles: Sequence[ParameterHandle],
        transport: Transport,
        sync: Literal["rank0", "assert"],
    ) -> None:
        """Replay: shards get their part of every parameter, the model gets its buffers. Collective.

        All ranks replay, with rank 0's seeds. The CPU generator ends as after the construction,
        unless this rank has drawn from it or seeded it since, or has seeds of its own.

        Raises:
            RuntimeError: ranks recorded different things; the same error on every rank.
        """
        own = self._recording.rng_states()
        states = self._agree(own, transport, sync)
        sinks = [
            (self._parameters[id(handle.parameter)], _into_shard(handle, transport.rank))
            for handle in handles
        ]
        before = torch.get_rng_state()
        goes_on = torch.equal(before, self._recording.left) and states is own
        kept = {leaf for leaf in tree_leaves(self._kept) if isinstance(leaf, Ref)}
        values = Replay(self._recording).run(sinks, kept, states)
        if not goes_on:
            torch.set_rng_state(before)
        for (holder, key), tree in self._kept:
            holder[key] = tree_map(lambda leaf: _value(leaf, values), tree)
        self._recorder.close()

    def _agree(
        self, own: list[torch.Tensor], transport: Transport, sync: Literal["rank0", "assert"]
    ) -> list[torch.Tensor]:
        """Seeds that all ranks replay with: the rank's own ones if they are rank 0's."""
        if transport.world == 1:
            return own
        if len(set(transport.exchange(self._recording.digest()))) > 1:
            raise RuntimeError(
                "expected every rank to construct the same model in deferred_init(), got different "
                "operations or constants; seed Python's and NumPy's generators alike"
            )
        states = b"".join(state.numpy().tobytes() for state in own)
        if len(set(transport.exchange(hashlib.sha256(states).digest()))) == 1:
            return own
        if sync == "assert":
            raise RuntimeError(
                "expected equal initial values on all ranks with sync='assert', got different "
                "seeds; seed every rank alike, or use sync='rank0' to take rank 0's"
            )
        taken = [broadcast(state, transport) for state in own]
        same = all(map(torch.equal, taken, own))
        return own if same else taken


_WORDS = {
    "given": "built with values",
    "recorded": "built inside deferred_init()",
    "drawn": "on the meta device",
}


def _kind(parameter: torch.Tensor) -> Initial:
    if isinstance(parameter, FakeTensor) and isinstance(parameter.fake_mode, Recorder):
        return "recorded"
    return "drawn" if parameter.device.type == "meta" else "given"


def _value(leaf: Any, values: Mapping[Ref, torch.Tensor]) -> Any:
    return values[leaf] if isinstance(leaf, Ref) else leaf


def _recorder_of(model: nn.Module) -> Recorder:
    fakes = [fake for holder, key in _places(model) for fake in _fakes(holder[key])]
    modes = {id(fake.fake_mode): fake.fake_mode for fake in fakes}
    if len(modes) > 1:
        raise RuntimeError(
            f"expected a model that was built inside one deferred_init(), got parts of {len(modes)}"
            "; build them in one, so that random numbers have an order"
        )
    recorder = modes.popitem()[1]
    assert isinstance(recorder, Recorder)
    return recorder


def _fakes(value: Any) -> list[FakeTensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, FakeTensor)]


def _places(model: nn.Module) -> Iterator[Place]:
    """Where modules hold fake tensors: parameters, buffers, other attributes and their items."""
    for module in model.modules():
        for holder in (module._parameters, module._buffers, module.__dict__):
            for key, value in list(holder.items()):
                registered = value is module._parameters or value is module._buffers
                if not registered and _fakes(value):
                    yield holder, key


def _shell(fake: Any) -> nn.Parameter:
    """A parameter of the same shape, dtype and attributes, with the memory of one element."""
    if fake.device.type != "cpu":
        raise RuntimeError(
            f"expected parameters on the CPU in this version, got {fake.device} in deferred_init()"
        )
    value = torch.empty((), dtype=fake.dtype).expand(fake.shape)
    shell = nn.Parameter(value, requires_grad=fake.requires_grad)
    of_all = vars(fake.detach()).keys() | {"_is_param"}
    shell.__dict__.update({key: own for key, own in vars(fake).items() if key not in of_all})
    return shell


def _into_shard(handle: ParameterHandle, rank: int) -> Sink:
    def take(value: torch.Tensor) -> None:
        store(handle, value.reshape(-1), rank)

    return take


def _initialize_anew(model: nn.Module) -> None:
    """Put recorded, empty tensors in place of those on meta, and run the model's initialization.

    That is ``model.init_weights()`` where there is one, else ``reset_parameters()`` of every module
    and ``model._init_weights(module)``.

    Raises:
        RuntimeError: some parameter or buffer is left without a value.
    """
    recorder = Recorder()
    with recording_into(recorder), torch.no_grad():
        made: dict[int, torch.Tensor] = {}
        names = _replace_meta(model, made)
        initialize = getattr(model, "init_weights", None)
        if callable(initialize):
            initialize()
        else:
            for module in model.modules():
                reset = getattr(module, "reset_parameters", None)
                if callable(reset):
                    reset()
            own = getattr(model, "_init_weights", None)
            if callable(own):
                model.apply(own)
    recording = recorder.recording
    filled = {
        s for o in recording.operations if not o.name.startswith("aten.empty") for s in o.writes
    }
    for holder, key in _places(model):
        for tensor in _fakes(holder[key]):
            if tensor.numel() and recording.ref(tensor).storage not in filled:
                raise RuntimeError(
                    "expected the model's own initialization to fill every tensor, got none for "
                    f"{names.get(id(tensor), key)!r}, which is on the meta device; give its module "
                    "reset_parameters(), or build the model inside deferred_init() instead"
                )


def _replace_meta(model: nn.Module, made: dict[int, torch.Tensor]) -> dict[int, str]:
    """Empty tensors for those on meta, one for all places of a tied one; their names by id."""
    names = {}
    for prefix, module in model.named_modules():
        for holder in (module._parameters, module._buffers):
            for key, tensor in list(holder.items()):
                if tensor is None or tensor.device.type != "meta":
                    continue
                if id(tensor) not in made:
                    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
                    parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = (
                        nn.Parameter(empty, requires_grad=tensor.requires_grad)
                        if parameter
                        else empty
                    )
                    names[id(made[id(tensor)])] = f"{prefix}.{key}".lstrip(".")
                holder[key] = made[id(tensor)]
    return names
