"""What a model can do once it is sharded."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn, cast

import torch
from torch import nn

from sshsdp_fsdp_runtime.plan import Plan
from sshsdp_fsdp_runtime.runtime.closed import ClosedState, closed_error, refuser
from sshsdp_fsdp_runtime.runtime.entry import (
    CheckpointEntry,
    layout_facts,
    model_entries,
    optimizer_entries,
    persistent_buffers,
)
from sshsdp_fsdp_runtime.runtime.fragment_tensor import FragmentTensor
from sshsdp_fsdp_runtime.runtime.full_state import (
    agree_on_full,
    check_full,
    expected_shapes,
    full_values,
    take_from_rank0,
)
from sshsdp_fsdp_runtime.runtime.lending import lent
from sshsdp_fsdp_runtime.runtime.nonfinite import Nonfinite, find_nonfinite
from sshsdp_fsdp_runtime.runtime.packed_linear import PackCalls
from sshsdp_fsdp_runtime.runtime.pieces import store
from sshsdp_fsdp_runtime.runtime.scalars import load_scalars, scalars_of
from sshsdp_fsdp_runtime.runtime.state import RuntimeState
from sshsdp_updates import ShardedOptimizer
from sshsdp_zerosm import Transport, TransportError


class ShardedModule(nn.Module):
    """What a model can do once it is sharded. Its class becomes a subclass of this and its own."""

    _sharded: RuntimeState
    _sharded_hooks: list[Any]
    _owns_transport: bool

    @property
    def optimizer(self) -> ShardedOptimizer:
        """The optimizer over this rank's shards; an ordinary ``torch.optim.Optimizer``."""
        if self._sharded.optimizer is None:
            # Not AttributeError: of one in a property nn.Module makes another, without this text.
            raise RuntimeError(
                "expected trainable parameters, got a model that is frozen; unfreeze before "
                "fully_shard()"
            )
        return self._sharded.optimizer

    @property
    def plan(self) -> Plan:
        """What was decided about the model: ``describe()``, ``forecast()``, ``signature()``."""
        return self._sharded.plan

    @property
    def transport(self) -> Transport:
        """What connects the ranks."""
        return self._sharded.transport

    def pack_calls(self) -> dict[tuple[str, ...], PackCalls]:
        """How often each pack was computed as one so far, by the names of its members."""
        return {pack.plan.members: replace(pack.calls) for pack in self._sharded.packs}

    def finalize_gradients(self) -> None:
        """Make main gradients final now instead of in the next step. Collective."""
        self._sharded.gradients.finalize()

    def join(self) -> int:
        """Take part, with zeros, in backward passes that other ranks still make. Collective.

        For ranks with different numbers of microbatches: every rank calls it once per round, after
        its last backward and before gradients are used. Averages are still over all ranks.

        Returns:
            How many passes the round has, on the rank with the most; 0 where no rank had any.

        Raises:
            RuntimeError: some rank uses gradients without it (on every rank); weights are
                gathered between nodes, which all ranks do together.
        """
        return self._sharded.join()

    def find_nonfinite(self) -> tuple[Nonfinite, ...]:
        """Weights, buffers, gradients and optimizer state that are inf or NaN. Collective.

        The same on every rank. After a skipped step, and before ``zero_grad``, it says which
        gradients caused it. Gradients are finalized for it.
        """
        return find_nonfinite(self, self._sharded)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002 (torch's signature)
        """Drop all gradients: the next ones overwrite. Collective.

        Those of ignored parameters as well, as torch does.
        """
        self._sharded.gradients.drop_all()
        for parameter in self.parameters():
            if type(parameter) is nn.Parameter:
                parameter.grad = None

    @contextmanager
    def unsharded(self, *patterns: str, write: bool = True) -> Iterator[dict[str, torch.Tensor]]:
        """Full main weights by name, on every rank. Collective, on entry and on exit.

        Args:
            *patterns: names of parameters, ``*`` within a name, ``**`` across dots; none: all.
            write: on exit take back what was changed in place. Every rank must make the same
                changes, since each keeps the part that it owns.
        """
        with lent(self._sharded, patterns, write=write) as full:
            yield full

    def state_dict(  # type: ignore[override]
        self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Sharded values under the model's own names; never communicates.

        The values are for ``torch.distributed.checkpoint``; `full_state_dict` gives tensors.

        Args:
            destination: filled and returned, as a module around this one asks; None: a new one.
            prefix: put before the names.
            keep_vars: not supported: values are never the model's own parameters.
        """
        if keep_vars:
            raise TypeError("expected keep_vars=False, got True; parameters hold no whole values")
        values: dict[str, Any] = {} if destination is None else destination
        for entry in model_entries(self, self._sharded):
            values[prefix + entry.key.removeprefix("model.")] = FragmentTensor(
                entry.tensor, entry.shape, entry.start, writes=entry.writes
            )
        return values

    def full_state_dict(self, *, rank0_only: bool = False) -> dict[str, torch.Tensor]:
        """Full values under the model's own names, in main precision. Collective.

        Args:
            rank0_only: the other ranks get an empty one, for which they need no memory.
        """
        return dict(self.iter_full_state_dict(rank0_only=rank0_only))

    def iter_full_state_dict(
        self, *, rank0_only: bool = False
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """The same, tensor by tensor: whoever writes them out needs memory for one at a time.

        Collective: every rank runs it to its end, also those that it gives nothing. Names of tied
        parameters come one after the other with the same tensor.
        """
        wanted = not rank0_only or self.transport.rank == 0
        return full_values(self, self._sharded, wanted=wanted)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> None:
        """Take full values, equal on all ranks, from a plain state dict. Collective.

        Raises:
            ValueError: names or shapes differ; nothing was changed.
        """
        if assign or not strict:
            raise TypeError(
                "expected strict=True and assign=False, got other: shards stay in place"
            )
        state = self._sharded
        check_full(expected_shapes(self, state.handles), state_dict)
        with self._writing_weights(), torch.no_grad():
            for handle in state.handles:
                values = state_dict[handle.spec.name].detach().reshape(-1)
                store(handle, values, state.transport.rank)
            for name in persistent_buffers(self):
                self.get_buffer(name).copy_(state_dict[name])

    def load_full_state_dict(self, state_dict: Mapping[str, torch.Tensor] | None) -> None:
        """Take full values that only rank 0 has. Collective.

        They travel in messages of bounded size, so the ranks need no memory for them; rank 0 asks
        for one value at a time, which a lazy mapping may use.

        Args:
            state_dict: on rank 0; the others give None.

        Raises:
            ValueError: names or shapes differ; nothing was changed. The same on every rank.
            RuntimeError: rank 0 could not read a value (on every rank); load again before use.
        """
        agree_on_full(self, self._sharded, state_dict)
        with self._writing_weights(), torch.no_grad():
            take_from_rank0(self, self._sharded, state_dict)

    def close(self) -> None:
        """Let go of all buffers; the model can't be used afterwards. Idempotent.

        Every rank does so at a time of its own, once no other rank is within a pass or a step.
        """
        if isinstance(self._sharded, ClosedState):
            return
        state, error = self._sharded, closed_error()
        self._sharded = cast("RuntimeState", ClosedState(state.plan, error))
        for hook in self._sharded_hooks:
            hook.remove()
        self._sharded_hooks[:] = [self.register_forward_pre_hook(refuser(error))]
        state.close()
        if self._owns_transport:
            state.transport.close()

    def leave_to_parent(self) -> None:
        """Called in a process that was forked off a rank: only the rank may use the model."""
        if isinstance(self._sharded, ClosedState):
            return
        try:
            self.transport.check_process()
        except TransportError as error:
            for group in self._sharded.weights.values():
                group.refuse(error)
            # The state stays alive, in the hooks: its end would touch what the rank uses.
            self._sharded = cast("RuntimeState", ClosedState(self.plan, error))
            self.register_forward_pre_hook(refuser(error), prepend=True)

    # Checkpoints

    def checkpoint_tensors(self) -> Iterator[CheckpointEntry]:
        """Every logical tensor of model and optimizer, as this rank holds it."""
        self._sharded.update.check_not_lent("a checkpoint")
        yield from model_entries(self, self._sharded)
        yield from optimizer_entries(self._sharded)

    def checkpoint_scalars(self) -> dict[str, Any]:
        """Steps by parameter and hyperparameters by group: JSON values, equal on all ranks."""
        return {} if self._sharded.optimizer is None else scalars_of(self._sharded.optimizer)

    def load_checkpoint_scalars(self, scalars: dict[str, Any]) -> None:
        """Take back what `checkpoint_scalars` gave."""
        if self._sharded.optimizer is not None:
            load_scalars(self._sharded.optimizer, scalars)

    def checkpoint_layout(self) -> dict[str, Any]:
        """Nodes, ranks per node and degrees by tensors: what a checkpoint says of its origin."""
        return layout_facts(self.plan)

    def weights_loaded(self) -> None:
        """Main weights were overwritten in place: run G and publish. Collective."""
        with self._writing_weights():
            pass

    @contextmanager
    def _writing_weights(self) -> Iterator[None]:
        self._sharded.update.begin()
        yield
        self._sharded.update.end()

    # What can't be done to a sharded model

    def _apply(self, fn: Any, recurse: bool = True) -> NoReturn:
        raise RuntimeError(
            "expected a sharded model to keep its device and dtype, got to(), cuda(), half() or "
            "the like; move and cast the model before fully_shard(), and use Cast(...) for the "
            f"dtype of computation ({fn!r}, recurse={recurse})"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        raise RuntimeError(
            "expected a sharded model to stay in place, got deepcopy; copy weights with "
            "model.full_state_dict(), or build the copy before fully_shard()"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise RuntimeError(
            "expected a sharded model to stay in this process, got pickle; save it with "
            "save_checkpoint() or model.full_state_dict()"
        )
