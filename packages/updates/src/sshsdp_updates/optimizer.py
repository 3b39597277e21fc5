"""The one ``torch.optim.Optimizer``: a facade over flat shards."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, overload

import torch
from torch import Tensor

from sshsdp_updates.audit import audit
from sshsdp_updates.exchange import AnyExchange
from sshsdp_updates.flat_state import Allocate, FlatState
from sshsdp_updates.norm import GradientNorm
from sshsdp_updates.plan import UpdatePlan
from sshsdp_updates.planner import LIMIT
from sshsdp_updates.protocols import LocalReducer, LocalSteps, Reducer, StepProtocol
from sshsdp_updates.rule import require
from sshsdp_updates.runs import runs
from sshsdp_updates.staged import Group, build_groups
from sshsdp_updates.state_dict import StateFragment, group_dict, live_state, load, state_fragments
from sshsdp_updates.step_counts import Used
from sshsdp_updates.terms import StepTerms
from sshsdp_updates.update_list import UpdateList, check_lists


class ShardedOptimizer(torch.optim.Optimizer):
    """Runs update rules over this rank's flat shards.

    There is one param group per rule *object*, in the order of first appearance, which holds the
    model's own parameters, their names (``param_names``), ``rule`` and the hyperparameters. Those
    are read at every step, so learning-rate schedulers work as with any torch optimizer.

    Attributes:
        skipped_steps: number of steps that changed nothing because the gradient norm was inf or
            NaN.
        last_step_skipped: whether the last step was one of them.
    """

    skipped_steps: int
    last_step_skipped: bool

    def __init__(
        self,
        lists: Sequence[UpdateList],
        *,
        reducer: Reducer | None = None,
        steps: StepProtocol | None = None,
        skip_nonfinite: bool = True,
        allocate: Allocate | None = None,
        exchange: AnyExchange | None = None,
        limit: int = LIMIT,
    ) -> None:
        """Check the lists, try every rule on scratch tensors, and allocate state.

        Args:
            lists: at least one member in all of them together; the same lists in the same order
                on every rank.
            reducer: combines partial norms over ranks; None is the exchange, or else a world of
                one rank.
            steps: owner of the buffers; None is a :class:`LocalSteps`.
            skip_nonfinite: check the gradient norm before each step and leave everything as it
                is when it is inf or NaN.
            allocate: makes state tensors; None takes them from torch.
            exchange: moves fragments for rules with stages over units or rows; None is a world
                of one rank. Where there are such rules, construction is collective.
            limit: bytes of temporaries that such a rule may need at a time; a unit is never split.

        Raises:
            ValueError: buffers, members, operands or units that don't fit together, or plans that
                differ between ranks.
            TemporaryError: a stage reads a temporary that no earlier one has written.
            UndeclaredOperandError, OperandAccessError: a stage breaks its own declaration.
        """
        check_lists(lists)
        rules = list({id(item.rule): item.rule for item in lists}.values())
        for rule in rules:
            weights = [item.main_weight for item in lists if item.rule is rule]
            for dtype, device in {(weight.dtype, weight.device) for weight in weights}:
                audit(rule, dtype, device)
        self._steps = steps or LocalSteps()
        self._skip_nonfinite = skip_nonfinite
        self._flats = [FlatState(item, allocate) for item in lists]
        self._groups = build_groups(rules, self._flats, exchange, limit)
        self._terms = StepTerms()
        self._norm = GradientNorm(self._flats, reducer or exchange or LocalReducer(), self._terms)
        self.skipped_steps = 0
        self.last_step_skipped = False
        self._built = self._closed = False
        super().__init__([_param_group(group) for group in self._groups], {})
        self._built = True
        # torch's own schedulers look for betas or momentum here.
        for rule in reversed(rules):
            self.defaults.update(rule.hyperparameters())
        # Never empty: tools that find no state make some by calling step().
        for flat in self._flats:
            for index, member in enumerate(flat.source.members):
                self.state[member.parameter] = flat.member_state(index)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every member that got a gradient, or nothing at all.

        Collective where gradients must be finalized or the norm is not known yet.

        Args:
            closure: evaluates the model again and returns the loss.

        Returns:
            What `closure` returned.

        Raises:
            ValueError: a hyperparameter in ``param_groups`` has no legal value; nothing changed.
            RuntimeError: ranks step with other hyperparameters, or clip differently; found where
                the norm is measured, on every rank.
        """
        self._check_open()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, values in zip(self._groups, self.param_groups, strict=True):
            group.rule.validate(values)
        used = self._finalize()
        self._terms.add("step", self._hyperparameters())
        with torch.no_grad():
            self.last_step_skipped = self._skip_nonfinite and not self._norm.finite(used)
            if self.last_step_skipped:
                self.skipped_steps += 1
            else:
                self._update(used)
        self._norm.changed()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002
        """Drop the gradients of the round.

        Args:
            set_to_none: as in torch's signature; the owner of the buffers decides what a dropped
                gradient is. Stand-alone, main gradients become zeros either way.
        """
        self._check_open()
        drop = getattr(self._steps, "zero_grad", None)
        if drop is not None:
            drop()
        else:
            for flat in self._flats:
                for run in runs(flat.fragments, [0] * len(flat.fragments)):
                    flat.source.main_grad[run.start : run.stop].zero_()
        self._norm.changed()

    def grad_norm(self) -> Tensor:
        """Return the global 2-norm of the used main gradients, 0-d float64 on the CPU.

        Collective unless the norm is known: it is kept until gradients change.
        """
        with torch.no_grad():
            return torch.tensor(self._norm.value(self._finalize()), dtype=torch.float64)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale main gradients in place so that their global 2-norm is at most `max_norm`.

        Returns:
            The norm before scaling, 0-d float64 on the CPU. If it is inf or NaN, nothing was
            scaled.
        """
        require(max_norm >= 0, "a norm >= 0", "max_norm", max_norm)
        used = self._finalize()
        clip = {"max_norm": float(max_norm)}
        self._terms.add("clip_grad_norm_", [clip, *self._hyperparameters()])
        with torch.no_grad():
            norm = self._norm.clip(used, float(max_norm))
            return torch.tensor(norm, dtype=torch.float64)

    @property
    def plans(self) -> tuple[UpdatePlan, ...]:
        """The plans of the rules that have stages over units or rows."""
        return tuple(group.plan for group in self._groups if group.plan is not None)

    def fields(self) -> Iterator[StateFragment]:
        """Yield this rank's piece of every state field, for checkpoints."""
        return state_fragments(self._flats)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state by parameter name; tensors are views of the live state.

        ``{"state": {name: {"step": 0-d float32, field: 1-D fragment, ...}}, "param_groups":
        [{"rule": ..., "params": [names], hyperparameter: value, ...}]}``. No communication.
        """
        self._check_open()
        for prepare in self._optimizer_state_dict_pre_hooks.values():
            prepare(self)
        result: dict[str, Any] = {
            "state": live_state(self._flats),
            "param_groups": [group_dict(group) for group in self.param_groups],
        }
        for finish in self._optimizer_state_dict_post_hooks.values():
            result = finish(self, result) or result
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state dict of the same world and layout in place, by name, without casts.

        Raises:
            ValueError: listing every name, shape, dtype and hyperparameter that differs; nothing
                was changed.
        """
        self._check_open()
        for prepare in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = prepare(self, state_dict) or state_dict
        with torch.no_grad():
            rules = [group.rule for group in self._groups]
            load(state_dict, live_state(self._flats), self.param_groups, rules)
        for finish in self._optimizer_load_state_dict_post_hooks.values():
            finish(self)

    def close(self) -> None:
        """Let go of weights, gradients and state; the optimizer can't be used afterwards."""
        self._closed = True
        self._flats, self._groups = [], []
        self._norm = GradientNorm([], LocalReducer(), self._terms)
        self._steps = LocalSteps()
        self.state.clear()
        for group in self.param_groups:
            group["params"] = []
            group["param_names"] = []

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: shards and state are laid out at construction.

        Raises:
            TypeError: always, once the optimizer is built.
        """
        if self._built:
            raise TypeError(
                "expected all parameters at construction, got a param group later; build a new "
                "ShardedOptimizer with lists that hold it"
            )
        super().add_param_group(param_group)

    @property
    def _step_supports_amp_scaling(self) -> NoReturn:
        """Refuse torch's GradScaler, which asks for this before anything else."""
        raise TypeError(
            "expected gradients that are not scaled, got a GradScaler; train in bfloat16 or "
            "float32, or build it with GradScaler(enabled=False)"
        )

    def __getstate__(self) -> NoReturn:
        """Refuse copies and pickling: two optimizers would update the same weights."""
        raise TypeError(
            "expected one ShardedOptimizer per set of buffers, got a copy or pickle of one; "
            "use state_dict() and load_state_dict()"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(
                "expected an open optimizer, got one whose buffers were let go by close(); build "
                "another"
            )

    def _hyperparameters(self) -> list[dict[str, Any]]:
        """What the rules would read now, per group."""
        return [
            {name: values[name] for name in group.rule.hyperparameters()}
            for group, values in zip(self._groups, self.param_groups, strict=True)
        ]

    def _finalize(self) -> list[Used]:
        """Make gradients final and return, per list, who has one."""
        self._check_open()
        with torch.no_grad():
            if self._steps.finalize_gradients() is not False:
                self._norm.changed()
        return [
            [self._steps.used(member.name) for member in flat.source.members]
            for flat in self._flats
        ]

    def _update(self, used: Sequence[Used]) -> None:
        by_list = {id(flat): flags for flat, flags in zip(self._flats, used, strict=True)}
        self._steps.begin_update()
        for group, values in zip(self._groups, self.param_groups, strict=True):
            group.run(values, [by_list[id(flat)] for flat in group.flats])
        for group in self._groups:
            group.commit()
        self._steps.end_update()


def _param_group(group: Group) -> dict[str, Any]:
    members = [member for flat in group.flats for member in flat.source.members]
    # Schedulers fill a tensor in place; the rule keeps the value it was built with.
    values = {
        name: value.clone() if isinstance(value, Tensor) else value
        for name, value in group.rule.hyperparameters().items()
    }
    return {
        "params": [(member.name, member.parameter) for member in members],
        "param_names": [],  # torch fills it in where there are members
        "rule": group.rule.name,
        **values,
    }
