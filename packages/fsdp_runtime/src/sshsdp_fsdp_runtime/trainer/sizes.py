"""Named sizes of the decoder."""

from types import MappingProxyType

from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.model import DecoderShape

# width, layers, heads, kv_heads, hidden
_SIZES = MappingProxyType(
    {
        "nano": (64, 2, 4, 2, 160),
        "tiny": (192, 4, 6, 2, 512),
        "small": (384, 6, 6, 2, 1024),
        "medium": (768, 12, 12, 4, 2048),
    }
)


def size_names() -> tuple[str, ...]:
    """The known names, smallest first."""
    return tuple(_SIZES)


def named_shape(name: str, *, vocab: int, context: int) -> DecoderShape:
    """The shape called `name`.

    Raises:
        InputError: naming the known sizes.
    """
    if name not in _SIZES:
        raise InputError(f"expected a model size out of {', '.join(_SIZES)}, got {name!r}")
    width, layers, heads, kv_heads, hidden = _SIZES[name]
    return DecoderShape(
        vocab=vocab,
        context=context,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        hidden=hidden,
    )
