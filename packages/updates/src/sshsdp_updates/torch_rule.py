"""Optimizers of ``torch.optim`` that treat every element on its own, run over fragments."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sshsdp_updates.operand import Access, Operand, Operands
from sshsdp_updates.rule import StateField, UpdateRule
from sshsdp_updates.stage import Scalars, Stage
from sshsdp_updates.torch_probe import examine


class TorchRule(UpdateRule):
    """A class of ``torch.optim`` as an update rule: its own code and options, per fragment.

    ``TorchRule(torch.optim.RAdam, lr=1e-3)``. State has torch's names, so that checkpoints go to
    plain PyTorch and back. Whether the class works element by element is tried when the rule is
    made, on whole tensors against pieces of them; what doesn't (Adafactor, LBFGS, Muon,
    SparseAdam) is refused. Any class that keeps torch's protocol will do.

    A class with fused kernels rounds the last few elements of a tensor otherwise than the rest, so
    ``fused=True`` makes the last bit depend on the cut; the default, and `AdamW` and `SGD` of this
    package, don't.
    """

    def __init__(self, kind: type[torch.optim.Optimizer], **options: Any) -> None:
        """Examine `kind`.

        Args:
            kind: the class.
            **options: its arguments, without the parameters.

        Raises:
            TypeError: `kind` is no such class, does not work element by element, or needs a graph.
            ValueError, TypeError: as the class itself does on illegal options.
        """
        if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer):
            raise TypeError(
                f"expected a class of torch.optim, got {kind!r}; give the class and its options, "
                "as in TorchRule(torch.optim.RAdam, lr=1e-3)"
            )
        title = _title(kind)
        object.__setattr__(self, "name", title)
        self._kind = kind
        self._options = options
        self._defaults = dict(self._on([nn.Parameter(torch.zeros(1, 1))]).defaults)
        for option in ("differentiable", "capturable"):
            if self._defaults.get(option):
                raise TypeError(
                    f"expected {title} with {option}=False, got True; steps over shards have no "
                    "graph"
                )
        self._arguments = [
            name for name in inspect.signature(kind).parameters if name in self._defaults
        ]
        self._state = examine(title, lambda parameters: self._with(parameters, self._defaults))
        self._shape = _truth(self._defaults)

    def hyperparameters(self) -> dict[str, Any]:
        """Return the defaults of the class with the given options."""
        return dict(self._defaults)

    def state_fields(self) -> tuple[StateField, ...]:
        """Return what the class keeps, under its own names."""
        return self._state.fields

    def stages(self) -> tuple[Stage, ...]:
        """Return the one elementwise stage: a step of the class."""
        kept = [Operand(field.name, Access.UPDATE, field.unit) for field in self._state.fields]
        given = [Operand("main_grad", Access.READ), Operand("main_weight", Access.UPDATE)]
        return (Stage("torch", self._step, (*given, *kept)),)

    def validate(self, hyperparameters: Mapping[str, Any]) -> None:
        """Have the class check them, and see that the state stays what it is."""
        values = {name: hyperparameters[name] for name in self._defaults}
        try:
            self._kind(
                [nn.Parameter(torch.zeros(1))], **{name: values[name] for name in self._arguments}
            )
        except ValueError as error:
            raise ValueError(f"expected hyperparameters of {self.name}, got {error}") from error
        if _truth(values) == self._shape:
            return
        state = examine(self.name, lambda parameters: self._with(parameters, values))
        if state != self._state:
            changed = [name for name in values if _truth(values)[name] != self._shape[name]]
            raise ValueError(
                f"expected hyperparameters of {self.name} that keep "
                f"{[field.name for field in self._state.fields]}, got "
                f"{[field.name for field in state.fields]} by a change of {', '.join(changed)}; "
                "say it when the rule is made"
            )

    def __repr__(self) -> str:
        """Name everything that decides about a step, for plans and their signatures."""
        options = "".join(f", {name}={value!r}" for name, value in self._defaults.items())
        return f"TorchRule({self.name}{options})"

    # A rule is a param group: two of them are two groups, whatever they hold.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def _on(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return self._kind(parameters, **self._options)

    def _with(
        self, parameters: list[nn.Parameter], values: Mapping[str, Any]
    ) -> torch.optim.Optimizer:
        """Return an optimizer of the class with these hyperparameters, and no others."""
        optimizer = self._on(parameters)
        optimizer.param_groups[0].update(values)
        return optimizer

    def _step(self, operands: Operands, scalars: Scalars) -> None:
        parameters = [nn.Parameter(weight) for weight in operands["main_weight"]]
        for parameter, gradient in zip(parameters, operands["main_grad"], strict=True):
            parameter.grad = gradient
        optimizer = self._with(parameters, {name: scalars[name] for name in self._defaults})
        kept = [
            {field.name: operands[field.name][index] for field in self._state.fields}
            for index in range(len(parameters))
        ]
        done = int(scalars["step"]) - 1
        # Before its first step a class makes its own state, which may have values of any kind.
        if done:
            for parameter, fields in zip(parameters, kept, strict=True):
                optimizer.state[parameter].update({**fields, **self._state.count(done)})
        optimizer.step()
        for parameter, fields in zip(parameters, kept, strict=True):
            for name, ours in fields.items():
                _take(ours, optimizer.state[parameter][name])


def _take(ours: Tensor, value: Tensor) -> None:
    """Copy `value` unless it is ours, which classes change in place."""
    if value.data_ptr() != ours.data_ptr():
        ours.copy_(value)


def _title(kind: type[torch.optim.Optimizer]) -> str:
    module = "torch.optim" if kind.__module__.startswith("torch.optim.") else kind.__module__
    return f"{module}.{kind.__qualname__}"


def _truth(values: Mapping[str, Any]) -> dict[str, bool]:
    """Which hyperparameters are on: switches, and factors that are not zero."""
    return {name: bool(value) for name, value in values.items()}
