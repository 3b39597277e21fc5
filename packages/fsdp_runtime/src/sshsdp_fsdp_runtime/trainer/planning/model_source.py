"""What `sshsdp plan MODEL` may name, and how it becomes a specification."""

from pathlib import Path

import torch

from sshsdp_fsdp_runtime.plan import ModelSpec
from sshsdp_fsdp_runtime.trainer.errors import InputError
from sshsdp_fsdp_runtime.trainer.model import Decoder, DecoderShape
from sshsdp_fsdp_runtime.trainer.planning.hugging_face import read_hugging_face
from sshsdp_fsdp_runtime.trainer.planning.import_path import read_import_path
from sshsdp_fsdp_runtime.trainer.planning.shape_file import read_shape_file
from sshsdp_fsdp_runtime.trainer.sizes import named_shape, size_names

_VOCAB, _CONTEXT = 256, 256  # of the named sizes: bytes of text, as `sshsdp train` has by default


def read_model(source: str) -> ModelSpec:
    """The names and shapes of a model, without its weights.

    Args:
        source: a TOML file of names and shapes; a Hugging Face ``config.json``, or a folder that
            holds one; ``package.module:callable``, which returns an ``nn.Module``; or a named size
            of `sshsdp train`.

    Raises:
        InputError: nothing of these, or one that can't be read.
    """
    if source in size_names():
        with torch.device("meta"):
            return ModelSpec.of(Decoder(shape_of(source)))
    path = Path(source)
    if path.suffix == ".toml":
        return read_shape_file(path)
    if path.suffix == ".json" or (source and path.is_dir()):
        return read_hugging_face(path)
    if ":" in source:
        return read_import_path(source)
    raise InputError(
        "expected a model as a .toml file of shapes, a Hugging Face config.json,"
        f" package.module:callable or one of the sizes {', '.join(size_names())}, got {source!r}"
    )


def shape_of(size: str) -> DecoderShape:
    """The decoder of a named size, over bytes of text."""
    return named_shape(size, vocab=_VOCAB, context=_CONTEXT)
