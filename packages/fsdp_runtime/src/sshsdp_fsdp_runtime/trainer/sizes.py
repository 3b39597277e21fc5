"""Named sizes of the decoder."""

from types import MappingProxyType

from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.model import DecoderShape

_SIZES = MappingProxyType(
    {
        "nano": {"width": 64, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 160},
        "tiny": {"width": 192, "layers": 4, "heads": 6, "kv_heads": 2, "hidden": 512},
        "small": {"width": 384, "layers": 6, "heads": 6, "kv_heads": 2, "hidden": 1024},
        "medium": {"width": 768, "layers": 12, "heads": 12, "kv_heads": 4, "hidden": 2048},
    }
)
_EXPERTS = MappingProxyType(
    {"tiny-moe": _SIZES["tiny"] | {"hidden": 256, "experts": 8, "active": 2}}
)  # as many products per token as the dense model


def size_names() -> tuple[str, ...]:
    """The known names, smallest first, then those with experts."""
    return (*_SIZES, *_EXPERTS)


def named_shape(name: str, *, vocab: int, context: int) -> DecoderShape:
    """The shape called `name`.

    Raises:
        InputError: naming the known sizes.
    """
    sizes = _SIZES.get(name) or _EXPERTS.get(name)
    if sizes is None:
        raise InputError(f"expected a model size out of {', '.join(size_names())}, got {name!r}")
    return DecoderShape(vocab=vocab, context=context, **sizes)
