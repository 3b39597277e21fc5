"""A model that `transformers` builds from a Hugging Face ``config.json``; nothing is downloaded."""

import contextlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from sshsdp_fsdp_runtime.plan import ModelSpec
from sshsdp_fsdp_runtime.trainer.errors import InputError


def read_hugging_face(path: Path) -> ModelSpec:
    """The model of a ``config.json``, or of a folder that holds one, on the meta device.

    Parameters have the dtype that the file names. Code that a repository brings along is not
    run: the model must be one that `transformers` itself knows.

    Raises:
        InputError: `transformers` (extra `huggingface`) is not installed, or can't read the file.
    """
    content = _content(path / "config.json" if path.is_dir() else path)
    try:
        import transformers  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError as error:
        raise InputError(
            f"expected transformers for {path}, which is not installed;"
            " do: pip install 'sshsdp-fsdp-runtime[huggingface]'"
        ) from error
    kind = content.pop("model_type", None)
    if not isinstance(kind, str):
        raise InputError(f"{path}: expected a model_type, as Hugging Face writes it, got {kind!r}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about defaults of a model that never runs
            config = transformers.AutoConfig.for_model(kind, **content)
            with torch.device("meta"), _default_dtype(getattr(config, "dtype", None)):
                model = _builder(transformers, config)(config)
    except Exception as error:
        # Whatever a model's own code raises on a file that is not for it: there is no base class.
        raise InputError(
            f"{path}: transformers {transformers.__version__} can't build this model:"
            f" {str(error).strip().splitlines()[0] if str(error).strip() else repr(error)}"
        ) from error
    return ModelSpec.of(model)


@contextlib.contextmanager
def _default_dtype(dtype: object) -> Iterator[None]:
    """Build in `dtype`; parameters that a model wants in a dtype of their own keep it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype if isinstance(dtype, torch.dtype) else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _builder(transformers: Any, config: Any) -> Any:
    """The class that the file names, else the causal language model of its type."""
    for name in getattr(config, "architectures", None) or ():
        kind = getattr(transformers, name, None)
        if kind is not None:
            return kind
    return transformers.AutoModelForCausalLM.from_config


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"expected a config.json, got {path}, which does not exist") from error
    except (OSError, ValueError) as error:
        raise InputError(f"expected a config.json, got {path}: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"expected a JSON object in {path}, got {type(content).__name__}")
    return content
