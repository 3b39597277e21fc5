"""Optimizer state that a load leaves out: of parameters that were not trained, or no longer are.

What is frozen when a model is sharded has no optimizer state and no main weight. A checkpoint of a
model that was frozen in other places differs in both; where the caller names those parameters,
their weights are taken and their state is not.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sshsdp_fsdp_runtime.checkpoint.errors import CheckpointMismatchError
from sshsdp_fsdp_runtime.checkpoint.signature import Signature
from sshsdp_fsdp_runtime.plan.patterns import matches
from sshsdp_fsdp_runtime.runtime import CheckpointEntry

_MODEL, _STATE = "model.", "optimizer.state."
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class FreshState:
    """The parameters whose optimizer state is not taken from a checkpoint.

    Attributes:
        names: all of their names.
    """

    names: frozenset[str]

    @classmethod
    def of(cls, patterns: Sequence[str], entries: Iterable[CheckpointEntry]) -> "FreshState":
        """The parameters that match one of `patterns`, under any of their names.

        Raises:
            CheckpointMismatchError: a pattern matches nothing.
        """
        origins = {
            entry.key.removeprefix(_MODEL): entry.tied_to or entry.key
            for entry in entries
            if entry.key.startswith(_MODEL)
        }
        chosen = set()
        for pattern in patterns:
            found = {origin for name, origin in origins.items() if matches(pattern, name)}
            if not found:
                raise CheckpointMismatchError(
                    "expected every pattern of `fresh` to match a parameter, got "
                    f"{pattern!r} that matches none; '*' stays within a name, '**' crosses dots"
                )
            chosen |= found
        return cls(frozenset(name for name, origin in origins.items() if origin in chosen))

    def without(self, entries: Iterable[CheckpointEntry]) -> list[CheckpointEntry]:
        """The entries that are read."""
        return [entry for entry in entries if _owner(entry.key) not in self.names]

    def compared(self, signature: Signature) -> Signature:
        """What has to agree: no state of theirs, and of their weights no dtype (see `Cast`)."""
        weights = {_MODEL + name for name in self.names}
        return Signature(
            {
                key: replace(spec, dtype="") if key in weights else spec
                for key, spec in signature.tensors.items()
                if _owner(key) not in self.names
            }
        )

    def scalars(self, saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """Saved steps and hyperparameters, where there are any to take, in the groups of `own`.

        Args:
            saved: of `Checkpointable.checkpoint_scalars`, as saved.
            own: the same of the model that loads; its groups may have other members.

        Raises:
            CheckpointMismatchError: a parameter was not trained, or the members of one group have
                different hyperparameters.
        """
        if "param_groups" not in own:
            return dict(saved)  # of no optimizer
        steps = saved.get("step", {})
        if absent := [n for n in own["step"] if n not in steps and n not in self.names]:
            raise CheckpointMismatchError(
                f"expected state of every parameter that is trained here, got none of {absent[0]!r}"
                " in the checkpoint; name it in `fresh`"
            )
        return {
            "step": {
                name: step if name in self.names else steps[name]
                for name, step in own["step"].items()
            },
            "param_groups": [
                self._group(group, saved.get("param_groups", ())) for group in own["param_groups"]
            ],
        }

    def _group(self, own: Mapping[str, Any], saved: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """`own`, with the hyperparameters of the saved groups that its members come from."""
        members = set(own["params"]) - self.names
        found = [
            {key: value for key, value in group.items() if key != "params"}
            for group in saved
            if members & set(group["params"])
        ]
        if any(other != found[0] for other in found):
            raise CheckpointMismatchError(
                "expected equal hyperparameters for the parameters that share an update rule, got "
                f"different ones for {', '.join(sorted(members)[:_SHOWN])} in the checkpoint; give "
                "them rules of their own"
            )
        return {**own, **(found[0] if found else {})}


def trained_otherwise(signature: Signature, saved: Signature) -> bool:
    """Whether some parameter has optimizer state in one of two models and none in the other."""
    ours, theirs = ({_owner(key) for key in s.tensors} - {None} for s in (signature, saved))
    known = {key.removeprefix(_MODEL) for key in signature.tensors.keys() & saved.tensors.keys()}
    return bool((ours ^ theirs) & known)


def updated_otherwise(signature: Signature, saved: Signature) -> bool:
    """Whether two models are equal, and only the state of their update rules differs."""
    ours, theirs = (
        {key: spec for key, spec in s.tensors.items() if _owner(key) is None}
        for s in (signature, saved)
    )
    return ours == theirs


def _owner(key: str) -> str | None:
    """The parameter whose optimizer state the key is; None for others."""
    if not key.startswith(_STATE):
        return None
    return key.removeprefix(_STATE).rpartition(".")[0]
