"""What a model must be to be sharded."""

from collections.abc import Collection, Sequence

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
        TypeError: an attribute of the model has a name that sharding gives it, an embedding asks
            for sparse gradients, or a parameter is of another class than ``nn.Parameter``,
            complex, or shares memory with another.
        RuntimeError: a parameter is not on the CPU.
    """
    check_list("ignored", ignored, str)  # before the plan is made, which needs a fit model
    for name in _GIVEN:
        if hasattr(model, name):
            raise TypeError(
                f"expected a model without an attribute {name!r}, which fully_shard() adds; "
                "rename it"
            )
    parameters = list(model.named_parameters(remove_duplicate=False))
    left = {id(p) for name, p in parameters if any(matches(pattern, name) for pattern in ignored)}
    _check_dense(model, left)
    if initial != "given":
        return
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


def _check_dense(model: nn.Module, left: Collection[int]) -> None:
    for place, module in model.named_modules():
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag) or not module.sparse:
            continue
        if module.weight.requires_grad and id(module.weight) not in left:
            name = f"{place}.weight" if place else "weight"
            raise TypeError(
                f"expected dense gradients, got {name!r} of {type(module).__name__}(sparse=True); "
                "build it with sparse=False, or leave it to an optimizer of its own with "
                f"ignored=[{name!r}]"
            )
