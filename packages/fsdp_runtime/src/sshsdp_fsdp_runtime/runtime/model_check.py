"""What a model must be to be sharded."""

from collections.abc import Sequence

from torch import nn

from sshsdp_fsdp_runtime.plan.patterns import matches
from sshsdp_fsdp_runtime.plan.rules import check_list
from sshsdp_fsdp_runtime.runtime.own_memory import check_own_memory
from sshsdp_fsdp_runtime.runtime.parameter import ShardedParameter

_GIVEN = ("optimizer", "plan", "transport")  # attributes of a sharded model


def check_model(model: nn.Module, initial: str, ignored: Sequence[str]) -> None:
    """Refuse names that would be hidden, and parameters that can't be converted.

    Args:
        model: not sharded yet.
        initial: where its values come from; other than ``given``, parameters become ordinary ones.
        ignored: patterns of parameters that may be as they like.

    Raises:
        TypeError: an attribute of the model has a name that sharding gives it, or a parameter is
            of another class than ``nn.Parameter``, complex, or shares memory with another.
        RuntimeError: a parameter is not on the CPU.
    """
    check_list("ignored", ignored, str)  # before the plan is made, which needs a fit model
    for name in _GIVEN:
        if hasattr(model, name):
            raise TypeError(
                f"expected a model without an attribute {name!r}, which fully_shard() adds; "
                "rename it"
            )
    if initial != "given":
        return
    parameters = list(model.named_parameters(remove_duplicate=False))
    left = {id(p) for name, p in parameters if any(matches(pattern, name) for pattern in ignored)}
    for name, parameter in parameters:
        if id(parameter) in left:
            continue
        if parameter.device.type != "cpu":
            raise RuntimeError(
                "expected parameters on the CPU in this version, got "
                f"{name!r} on {parameter.device}"
            )
        if isinstance(parameter, ShardedParameter):
            raise TypeError(
                f"expected a model of which nothing is sharded yet, got {name!r}, which another "
                "fully_shard() has sharded; make one call for the whole model, with "
                "groups=[pattern, ...] for what is gathered as one, or leave that part to its own "
                "optimizer with ignored=[pattern]"
            )
        if type(parameter) is not nn.Parameter:
            raise TypeError(
                f"expected nn.Parameter, got {type(parameter).__name__} for {name!r}; parametrize "
                "or distribute it after fully_shard(), or not at all"
            )
        if parameter.is_complex() and parameter.requires_grad:
            raise TypeError(
                f"expected real parameters to train, got {name!r} of {parameter.dtype}; keep real "
                "and imaginary parts, and use torch.view_as_complex() in the forward"
            )
    check_own_memory({name: p for name, p in model.named_parameters() if id(p) not in left})
