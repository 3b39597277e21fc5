"""A model that a Python function of the user builds, on the meta device."""

import importlib
import sys
from pathlib import Path

import torch
from torch import nn

from sshsdp_fsdp_runtime.plan import ModelSpec
from sshsdp_fsdp_runtime.trainer.errors import InputError


def read_import_path(source: str) -> ModelSpec:
    """The model that ``package.module:callable`` returns; modules of the working folder count.

    The callable gets no arguments and is called where new tensors are on the meta device.

    Raises:
        InputError: it can't be imported or called, or returns something else.
    """
    module_name, _, attribute = source.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as for `python -m`
    try:
        build = importlib.import_module(module_name)
        for name in attribute.split("."):
            build = getattr(build, name)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise InputError(f"expected package.module:callable, got {source!r}: {error}") from error
    if not callable(build):
        raise InputError(f"expected {source!r} to be callable, got {type(build).__name__}")
    try:
        with torch.device("meta"):
            model = build()
    except Exception as error:
        # Any error of the user's function: the last line of its traceback is what it says.
        raise InputError(
            f"expected {source!r} to build a model without arguments, on the meta device, got"
            f" {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(f"expected an nn.Module from {source!r}, got {type(model).__name__}")
    return ModelSpec.of(model)
